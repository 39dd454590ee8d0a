"""
The gate in PostgreSQL: an upsert, which locks the row whether it changes it or not.

At READ COMMITTED it waits for the other transaction and compares with what that one
has committed. From REPEATABLE READ on, PostgreSQL answers a wait that ended with a change
by a serialization failure (SQLSTATE 40001).
"""

from __future__ import annotations

from typing import Final

from celery_fence.fencing.gate.mark import Ask, Mark, Outcome, Wish

DDL: Final = """
CREATE TABLE IF NOT EXISTS fence_gates (
    scope VARCHAR(255) PRIMARY KEY,
    last_fencing_token BIGINT NOT NULL,
    last_fencing_owner VARCHAR(64)
)"""

MOVE: Final = """
INSERT INTO fence_gates AS gate (scope, last_fencing_token, last_fencing_owner)
VALUES (:scope, :token, :owner)
ON CONFLICT (scope) DO UPDATE SET
    last_fencing_token = GREATEST(gate.last_fencing_token, excluded.last_fencing_token),
    last_fencing_owner = CASE
        WHEN gate.last_fencing_token < excluded.last_fencing_token THEN excluded.last_fencing_owner
        ELSE gate.last_fencing_owner
    END
RETURNING gate.last_fencing_token, gate.last_fencing_owner"""
"""One row: the mark that the gate has now. It doesn't say which one it had before."""

MOVE_UP: Final = """
INSERT INTO fence_gates AS gate (scope, last_fencing_token, last_fencing_owner)
VALUES (:scope, :token, :owner)
ON CONFLICT (scope) DO UPDATE SET
    last_fencing_token = excluded.last_fencing_token,
    last_fencing_owner = excluded.last_fencing_owner
WHERE gate.last_fencing_token < excluded.last_fencing_token
RETURNING gate.last_fencing_token, gate.last_fencing_owner"""
"""One row if the mark was moved, else none; the row is locked in both cases."""

READ: Final = "SELECT last_fencing_token, last_fencing_owner FROM fence_gates WHERE scope = :scope"


def move(ask: Ask, wish: Wish, *, once: bool) -> Outcome:
    """See `mark.Dialect`: one round trip; with *once*, a second one where the mark stays."""
    if not once:
        return Outcome(_only(ask(MOVE, wish.parameters).mark()), moved=None)
    moved = ask(MOVE_UP, wish.parameters).mark()
    if moved is not None:
        return Outcome(moved, moved=True)
    return Outcome(_only(ask(READ, {"scope": wish.scope}).mark()), moved=False)


def _only(mark: Mark | None) -> Mark:
    if mark is None:
        raise LookupError(
            "PostgreSQL upserted a row of fence_gates and doesn't show it: has it a rule or a policy?"
        )
    return mark
