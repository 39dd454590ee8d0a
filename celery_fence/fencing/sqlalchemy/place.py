"""A gate that is passed in a transaction of SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from sqlalchemy import BigInteger, Connection, String, Text, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.types import TypeEngine

from celery_fence.errors import ConfigError
from celery_fence.fencing.gate.mark import Answer, Dialect, Mark, Wish
from celery_fence.fencing.gate.place import no_transaction
from celery_fence.fencing.gate.table import dialect_of

PASSED: Final = "celery_fence.passed"
"""Where a database connection keeps, for each of its transactions, the marks that have passed in it."""

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
        """See `Place`; looks at the isolation level that was set, and asks nobody."""
        level = self.connection.get_execution_options().get("isolation_level")
        if level is None:
            level = getattr(self.connection.dialect, "_on_connect_isolation_level", None)
        if level == "AUTOCOMMIT":
            raise no_transaction("Give it another isolation_level.")

    def has_passed(self, wish: Wish, *, once: bool) -> bool:
        """See `Place`; what passed in a savepoint counts as long as that is the current one."""
        noted = next((each[wish.scope] for each in self._notes() if wish.scope in each), None)
        if noted is None or noted[0] != wish.mark:
            return False
        if once and not noted[1]:
            raise ConfigError(
                f"The gate of {wish.scope!r} was passed earlier in this transaction without once=True; ask there."
            )
        return True

    def remember(self, wish: Wish, *, once: bool) -> None:
        """Note it with the innermost transaction: rolling back to a savepoint undoes the passage."""
        for notes in self._notes():
            notes.pop(wish.scope, None)
        self._notes()[0][wish.scope] = (wish.mark, once)

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        """See `mark.Ask`."""
        named = [bindparam(name, type_=TYPES[name]) for name in parameters]
        result = self.connection.execute(text(sql).bindparams(*named), dict(parameters))
        if result.returns_rows:
            return Answer([tuple(row) for row in result], result.rowcount, None)
        return Answer([], result.rowcount, result.lastrowid if self.dialect is dialect_of("mysql") else None)

    def _notes(self) -> list[dict[str, tuple[Mark, bool]]]:
        """What is noted of the innermost savepoint, if there is one, and of the transaction."""
        kept = self.connection.info.setdefault(PASSED, WeakKeyDictionary())
        both = self.connection.get_nested_transaction(), self.connection.get_transaction()
        return [kept.setdefault(transaction, {}) for transaction in both if transaction is not None]


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
