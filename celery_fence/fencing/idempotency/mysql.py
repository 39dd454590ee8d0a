"""
The records in MySQL and MariaDB.

The upsert reads and locks what is committed last, not the snapshot. What became of it
comes back with its very answer, through `LAST_INSERT_ID(expression)`: 1 made the row, 2
took it over, 3 left it as it was. The row is then read by a locking read: a plain one
may answer from an old snapshot.
"""

from __future__ import annotations

from typing import Final

from celery_fence.fencing.gate.mark import Answer
from celery_fence.fencing.idempotency.record import READ, completing, declaring, deleting_old

NOW: Final = "UNIX_TIMESTAMP()"

DDL: Final = declaring(
    exact=" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    text="MEDIUMTEXT",
    options=" ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
)

MADE, TAKEN, LEFT = range(1, 4)

FREE: Final = "done_at IS NULL AND lock_key = :lock_key AND token < :token"

# The assignments run from left to right: the token is set last, and all compare with the old one.
CLAIM: Final = f"""
INSERT INTO fence_records (record_key, step, lock_key, token, owner, claimed_at)
VALUES (:record, :step, :lock_key, :token + 0 * LAST_INSERT_ID({MADE}), :owner, {NOW})
ON DUPLICATE KEY UPDATE
    claimed_at = IF(LAST_INSERT_ID(IF({FREE}, {TAKEN}, {LEFT})) = {TAKEN}, {NOW}, claimed_at),
    owner = IF({FREE}, :owner, owner),
    token = IF({FREE}, :token, token)"""  # noqa: S608 - constants

FOUND: Final = f"{READ} FOR UPDATE"
COMPLETE: Final = completing(NOW)
DELETE_OLD: Final = deleting_old(NOW)


def has_claimed(answer: Answer) -> bool:
    """See `record.Dialect`; a driver that knows no ``lastrowid`` says no."""
    return answer.lastrowid in {MADE, TAKEN}
