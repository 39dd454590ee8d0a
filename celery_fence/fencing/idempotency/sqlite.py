"""
The records in SQLite.

The upsert takes the one write lock of the database, whether it changes the row or not, so
nobody has written between it and the read that follows.
"""

from __future__ import annotations

from typing import Final

from celery_fence.fencing.gate.mark import Answer
from celery_fence.fencing.idempotency.record import READ, completing, declaring, deleting_old

# Without strftime, whose percent sign some drivers would take for a parameter.
NOW: Final = "CAST((julianday('now') - 2440587.5) * 86400 AS INTEGER)"

DDL: Final = declaring()

CLAIM: Final = f"""
INSERT INTO fence_records (record_key, step, lock_key, token, owner, claimed_at)
VALUES (:record, :step, :lock_key, :token, :owner, {NOW})
ON CONFLICT (record_key, step) DO UPDATE SET
    token = excluded.token,
    owner = excluded.owner,
    claimed_at = excluded.claimed_at
WHERE done_at IS NULL AND lock_key = excluded.lock_key AND token < excluded.token"""  # noqa: S608 - constants

FOUND: Final = READ
COMPLETE: Final = completing(NOW)
DELETE_OLD: Final = deleting_old(NOW)


def has_claimed(answer: Answer) -> bool:
    """See `record.Dialect`."""
    return answer.rowcount == 1
