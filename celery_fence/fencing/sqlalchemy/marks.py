"""High-water marks in a database: the rows of the gate table, moved in short transactions of their own."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from celery_fence.fencing.gate.mark import Mark, Wish, kept_scope
from celery_fence.fencing.gate.table import naming_missing_table
from celery_fence.fencing.sqlalchemy.place import SqlAlchemyPlace

ATTEMPTS = 5
"""Two who are the first in a scope may deadlock; one of them is told to try again."""


class SqlMarks:
    """
    Marks in the table ``fence_gates`` (`gates_table`, `create_gates`) of *engine*'s database.

    Each is moved and committed at once, so it tells consumers apart and holds nobody
    up. A consumer that writes to this database does better to pass the gate in the
    transaction that writes: ``pass_gate(session, lease=stamp)``. Marks stay
    until somebody deletes their rows. What SQLAlchemy raises comes through.
    """

    def __init__(self, engine: Engine) -> None:
        levels = {} if engine.dialect.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
        # At a stricter level the second of two would be refused for having waited.
        self._engine = engine.execution_options(**levels)

    def raise_mark(self, scope: str, mark: Mark) -> Mark:
        """As `HighWaterStore.raise_mark`."""
        wish = Wish(kept_scope(scope), mark)
        for _ in range(1, ATTEMPTS):
            try:
                return self._move(wish)
            except OperationalError as error:
                if error.connection_invalidated:
                    raise
        return self._move(wish)

    def _move(self, wish: Wish) -> Mark:
        with self._engine.begin() as connection:
            place = SqlAlchemyPlace.of(connection)
            with naming_missing_table():
                return place.dialect.move(place.ask, wish, once=False).seen
