"""
The gate in MySQL and MariaDB: an upsert, which reads and locks what is committed last, not the snapshot.

What it found can't be told from the number of rows: that is 0, 1 or 2, and means
different things with and without the client flag FOUND_ROWS, which some drivers set and
others don't. So the statement says it through `LAST_INSERT_ID(expression)`, which comes
back with its very answer (``cursor.lastrowid``): four times the token that it found,
plus what it did about it. Answers: 0 made the row, 1 moved the mark, 2 found the same
token and owner, 3 found a newer token or another owner.
"""

from __future__ import annotations

from typing import Final

from celery_fence.errors import ConfigError
from celery_fence.fencing.gate.mark import Ask, Mark, Outcome, Wish

DDL: Final = """
CREATE TABLE IF NOT EXISTS fence_gates (
    scope VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    last_fencing_token BIGINT NOT NULL,
    last_fencing_owner VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
) ENGINE=InnoDB"""

MADE, MOVED, SAME, STALE = range(4)

# The assignments run from left to right: the owner is set while the token is still the old one.
MOVE: Final = """
INSERT INTO fence_gates (scope, last_fencing_token, last_fencing_owner)
VALUES (:scope, :token + 0 * LAST_INSERT_ID(4), :owner)
ON DUPLICATE KEY UPDATE
    last_fencing_owner = CASE MOD(LAST_INSERT_ID(4 * last_fencing_token + CASE
            WHEN last_fencing_token < :token THEN 1
            WHEN last_fencing_token = :token AND last_fencing_owner <=> :owner THEN 2
            ELSE 3
        END), 4) WHEN 1 THEN :owner ELSE last_fencing_owner END,
    last_fencing_token = GREATEST(last_fencing_token, :token)"""

READ: Final = "SELECT last_fencing_token, last_fencing_owner FROM fence_gates WHERE scope = :scope FOR UPDATE"
"""The row as it was committed last, or as this transaction has left it; a plain read may be older."""


def move(ask: Ask, wish: Wish, *, once: bool) -> Outcome:
    """See `mark.Dialect`: one round trip; a second one for a wish that is refused, to read whom it met."""
    said = ask(MOVE, wish.parameters).lastrowid
    if said and said % 4 != STALE:
        return Outcome(wish.mark, moved=said % 4 in {MADE, MOVED})
    seen = ask(READ, {"scope": wish.scope}).mark()
    if not said and once:
        raise ConfigError(
            "This MySQL driver doesn't tell what LAST_INSERT_ID was set to (cursor.lastrowid), so once=True can't work."
        )
    return Outcome(seen or Mark(0, None), moved=False)
