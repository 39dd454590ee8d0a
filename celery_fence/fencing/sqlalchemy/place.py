"""A gate that is passed in a transaction of SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import BigInteger, Connection, String, Text, Transaction, bindparam, event, text
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.types import TypeEngine

from celery_fence.errors import ConfigError
from celery_fence.fencing.gate.mark import Answer, Dialect, Mark, Wish
from celery_fence.fencing.gate.place import no_transaction
from celery_fence.fencing.gate.table import dialect_of
from celery_fence.fencing.sqlalchemy.asynchronous import AsyncConnection, AsyncSession, async_scoped_session
from celery_fence.fencing.sqlalchemy.autocommit import autocommits

PASSED: Final = "celery_fence.passed"
"""Where a database connection keeps, for each of its transactions, the marks that have passed in it."""

Notes: TypeAlias = WeakKeyDictionary[Transaction, dict[str, tuple[Mark, bool]]]

TYPES: Final[dict[str, TypeEngine[Any]]] = {
    **dict.fromkeys(("scope", "owner", "record", "step", "lock_key"), String()),
    **dict.fromkeys(("token", "seconds"), BigInteger()),
    "result": Text(),
}
"""Of each parameter that a guard's statement has; asyncpg has to be told."""


@dataclass(frozen=True, slots=True)
class SqlAlchemyPlace:
    """The transaction that a Session or Connection is in; begins one where it begins them by itself."""

    connection: Connection
    dialect: Dialect

    @classmethod
    def of(cls, given: Any) -> Self:
        """The place of a Session, `scoped_session` or Connection. `ConfigError` for anything else of SQLAlchemy's."""
        connection = _connection_of(given)
        return cls(connection, dialect_of(connection.dialect.name))

    def check_transaction(self) -> None:
        """See `Place`; asks nobody."""
        if autocommits(self.connection):
            raise no_transaction("Give it another isolation_level.")

    def has_passed(self, wish: Wish, *, once: bool) -> bool:
        """See `Place`; what passed in a savepoint counts until that is rolled back."""
        notes = [kept for transaction, kept in self._kept().items() if transaction.is_active]
        noted = next((each[wish.scope] for each in notes if wish.scope in each), None)
        if noted is None or noted[0] != wish.mark:
            return False
        if once and not noted[1]:
            raise ConfigError(
                f"The gate of {wish.scope!r} was passed earlier in this transaction without once=True; ask there."
            )
        return True

    def remember(self, wish: Wish, *, once: bool) -> None:
        """Note it with the innermost transaction: rolling back to a savepoint undoes the passage."""
        innermost = self.connection.get_nested_transaction() or self.connection.get_transaction()
        if innermost is None:
            return
        if innermost is self.connection.get_nested_transaction():
            _follow(self.connection)
        for notes in self._kept().values():
            notes.pop(wish.scope, None)
        self._kept().setdefault(innermost, {})[wish.scope] = (wish.mark, once)

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        """See `mark.Ask`."""
        named = [bindparam(name, type_=TYPES[name]) for name in parameters]
        passed = self._kept()
        try:
            result = self.connection.execute(text(sql).bindparams(*named), dict(parameters))
        except BaseException:
            # A deadlock may have rolled back the transaction in the database, with all its locks.
            passed.clear()
            raise
        if result.returns_rows:
            return Answer([tuple(row) for row in result], result.rowcount, None)
        return Answer([], result.rowcount, result.lastrowid if self.dialect is dialect_of("mysql") else None)

    def _kept(self) -> Notes:
        """What is noted of the transaction and its savepoints; what is over isn't active."""
        return _notes(self.connection)


def _notes(connection: Connection) -> Notes:
    kept: Notes = connection.info.setdefault(PASSED, WeakKeyDictionary())
    return kept


def _follow(connection: Connection) -> None:
    """Be told when savepoints of *connection* are released."""
    if not event.contains(connection, "release_savepoint", _released):
        event.listen(connection, "release_savepoint", _released)


def _released(connection: Connection, _name: str, _context: Any) -> None:
    """What passed in a savepoint that is released belongs to the one around it, or to the transaction."""
    savepoint: Any = connection.get_nested_transaction()
    if savepoint is None:
        return
    passed = _notes(connection).pop(savepoint, {})
    outer = savepoint._previous_nested or connection.get_transaction()  # noqa: SLF001 - no public name
    if passed and outer is not None:
        _follow(connection)
        _notes(connection).setdefault(outer, {}).update(passed)


def _connection_of(given: Any) -> Connection:
    if isinstance(given, scoped_session):
        given = given()
    if isinstance(given, Session):
        return given.connection()
    if isinstance(given, Connection):
        return given
    if isinstance(given, AsyncSession | AsyncConnection | async_scoped_session):
        raise ConfigError(
            "An async session or connection goes with `await pass_gate_async(...)`, `await claim_async(...)` or "
            "`await once_async(...)`."
        )
    raise ConfigError(f"A guard takes an SQLAlchemy Session or Connection, not {type(given).__qualname__}.")
