"""
The demo: one night of billing with the fence, one without, on this machine.

`nights` runs a night: servers and workers (`processes`), two schedulers, and what
goes wrong (`faults`), followed through the journal (`watch`); in the morning come
the `latecomers`. `timeline` and `verdict` then read the ledger; no number is told by
anything else.
"""
