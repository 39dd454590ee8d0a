"""
The integration bench: real brokers, real worker processes, and a ledger of effects.

A `Bench` is one small world: a broker, a result backend, a lease server of its own, one queue,
and the workers that a test starts on it. The task bodies (`bodies.py`) append what they
do to a *ledger*; the tests read it and wait for facts, never for time. A body that
shall hold its key waits for a *gate*, which the test opens.
"""
