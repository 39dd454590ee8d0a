"""
WHOSE WRITE COUNTS. The half of the fence that holds when a lease alone doesn't.

A lease says who MAY run. It can't stop a run that was paused: a frozen container wakes
up minutes later, in the middle of a line, believing that it still holds its key, and
writes. Nobody can prevent that from outside, and no check before the write can, either:
the pause may come right after the check.

So the place that is written to decides. Each write shows the fencing token of its
lease, and the place keeps the greatest token it has seen. What shows a smaller one is
*stale*: a newer holder has been here. It changes nothing and raises `StaleToken`. Looking and
writing are one step, in the statement or script itself, while the row is locked; so
there is no moment in between.

    A, token 5                      the row               B, token 6
    reads, is frozen                seen: 0
                                    seen: 6               takes over, writes
    wakes up, writes with 5         refused: 5 < 6

Three rules hold in every guard:

- Tokens compare within one key only. Each guarded thing belongs to one key, and a write
  under another key's lease is an error, not a comparison.
- An equal token of the same owner is another write of the same run, and passes; an equal
  token of another owner is stale.
- A write without a token is refused. In mode ``shadow`` it passes and is told, as is a
  stale one; in mode ``off`` nothing is compared.

`writer` says who writes and what becomes of a refusal. The guards are places of their
own: rows, gates and triggers of a database (`sqlalchemy`, `gate`, `trigger`), event
streams (`streams`), the receiving end of messages and HTTP calls (`token_gate`, `http`).
`idempotency` goes one step further: a record, written with the effect, of what was done
once and isn't to be done again by a newer run, either.
"""
