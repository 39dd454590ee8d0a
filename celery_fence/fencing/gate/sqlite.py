"""
The gate in SQLite: an upsert, which takes the one write lock of the database.

It waits for another writer as long as the connection's busy timeout says. Where the
transaction has read before and the database has changed since, SQLite answers
"database is locked" at once.
"""

from __future__ import annotations

from typing import Final

from celery_fence.fencing.gate.mark import Ask, Mark, Outcome, Wish

DDL: Final = """
CREATE TABLE IF NOT EXISTS fence_gates (
    scope VARCHAR(255) NOT NULL PRIMARY KEY,
    last_fencing_token BIGINT NOT NULL,
    last_fencing_owner VARCHAR(64)
)"""

# Without RETURNING, which SQLite has since 3.35 only.
MOVE: Final = """
INSERT INTO fence_gates (scope, last_fencing_token, last_fencing_owner)
VALUES (:scope, :token, :owner)
ON CONFLICT (scope) DO UPDATE SET
    last_fencing_token = excluded.last_fencing_token,
    last_fencing_owner = excluded.last_fencing_owner
WHERE last_fencing_token < excluded.last_fencing_token"""

READ: Final = "SELECT last_fencing_token, last_fencing_owner FROM fence_gates WHERE scope = :scope"
"""Under the write lock that MOVE has taken, so nobody has written since."""


def move(ask: Ask, wish: Wish, *, once: bool) -> Outcome:  # noqa: ARG001 - it can always tell
    """See `mark.Dialect`: one statement where the mark is moved, two where it stays; no server, no round trip."""
    if ask(MOVE, wish.parameters).rowcount == 1:
        return Outcome(wish.mark, moved=True)
    return Outcome(ask(READ, {"scope": wish.scope}).mark() or Mark(0, None), moved=False)
