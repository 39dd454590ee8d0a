"""
Leases in Redis or Valkey: one server, asked with one Lua script per question.

**Names.** Everything of a business key lies in one bucket, and the bucket, not the
key, is the Cluster hash tag, so braces in a key can neither make nor break one:

- ``fence:{bNN}:lease:<key>``, a hash that lives for the TTL and the lost delay: ``layout``, ``owner``,
  ``token``, ``since`` (us since the epoch), ``ttl`` (ms), ``facts`` (JSON); where its claim has them,
  ``delivery``, ``message`` and ``lost_delay`` (ms). The last beat is where ``ttl`` began to run.
- ``fence:{bNN}:token:<key>``, a hash that lives for `counter_retention` after its last use: ``token``
  (the last one issued), ``released`` (the owner who released last), ``released_at`` (when, us),
  ``forced`` (holders up to this token are fenced off).
- ``fence:{bNN}:done:<digest>:<key>``, a hash that lives for its claim's retention, about a delivery that
  ended: ``how``, ``at`` (us since the epoch), ``by`` (whose word it is); ``noted`` once its epilogue is
  complete, ``value`` until then, ``holder`` (JSON) where the end was a decision on a miss.
- ``fence:{bNN}:expiries``, a sorted set of the bucket's keys with a lease, by the moment they open (ms);
  gone when empty, at the latest after about twice the longest TTL.
- ``fence:{bMM}:record:<idempotency key>``, a hash that lives for its claim's record retention: ``key`` (the lock
  key), ``owner``, ``token`` and ``facts`` of the run that claimed it, ``claimed`` (us since the epoch); ``done`` (the
  same) once its body has returned, ``value`` where its result is kept. `MM` is the bucket of the idempotency key, so on
  a Cluster one script couldn't touch it together with the lease.
- ``fence:{bMM}:records``, a sorted set of the bucket's idempotency keys with a record, by the moment it expires (ms);
  gone when empty, at the latest after about twice the longest retention.
- ``fence:{b00}:check:hash`` and ``fence:{b01}:check:set``, written and deleted again by one script as a
  worker starts, to see whether that is permitted.

`NN` is the CRC-32 of the key modulo 64. The kind (`lease`, `token`, `done`, `record`; later
kinds likewise) stands BEFORE the key, and the key is all of the rest: so no key, whatever
it contains, can be mistaken for the counter, the marker or the queue of another one.
The delivery is there as a digest of fixed length (BLAKE2b, 32 hex digits), for the same reason.

**Version.** Names stay; each lease carries the number of its layout in the field
`layout` (now 1). A reader ignores fields it doesn't know. A lease of another layout
is a lease: its owner, token and TTL are where they always were.

**What somebody else wrote** under one of these names, of another type: a lease keeps others out all the same, a
record is none; a counter, a marker or an index is deleted, and begun afresh. A number that can't be ours (not finite,
below 0, from 2^53 on) reads as none.

**Time** inside a script is the server's `TIME`. A token is
``max(last + 1, server time in microseconds)``: it goes on growing when the counter
was lost, since the clock did not stop. It is formatted with ``%.0f``, because Lua's
own conversion rounds numbers of 16 digits.
"""

from celery_fence.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
