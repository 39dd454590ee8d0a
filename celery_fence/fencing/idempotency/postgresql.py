"""
The records in PostgreSQL.

The upsert locks the row whether it changes it or not, and returns a row if it does. At
READ COMMITTED it waits for another transaction's claim and compares with what that one
has committed; from REPEATABLE READ on, such a wait ends with a serialization failure (SQLSTATE 40001).
"""

from __future__ import annotations

from typing import Final

from celery_fence.fencing.gate.mark import Answer
from celery_fence.fencing.idempotency.record import READ, completing, declaring, deleting_old

NOW: Final = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS BIGINT)"

DDL: Final = declaring()

CLAIM: Final = f"""
INSERT INTO fence_records AS record (record_key, step, lock_key, token, owner, claimed_at)
VALUES (:record, :step, :lock_key, :token, :owner, {NOW})
ON CONFLICT (record_key, step) DO UPDATE SET
    token = excluded.token,
    owner = excluded.owner,
    claimed_at = excluded.claimed_at
WHERE record.done_at IS NULL AND record.lock_key = excluded.lock_key AND record.token < excluded.token
RETURNING 1"""  # noqa: S608 - constants

FOUND: Final = READ
COMPLETE: Final = completing(NOW)
DELETE_OLD: Final = deleting_old(NOW)


def has_claimed(answer: Answer) -> bool:
    """See `record.Dialect`."""
    return bool(answer.rows)
