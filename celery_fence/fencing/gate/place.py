"""Where a gate is passed: a transaction of SQLAlchemy, of Django or of a DB-API driver, told by its type alone."""

from __future__ import annotations

from typing import Any, Protocol

from celery_fence.errors import ConfigError
from celery_fence.fencing.gate.mark import Ask, Dialect, Wish


class Place(Protocol):
    """One transaction, and the statements for its database."""

    @property
    def dialect(self) -> Dialect:
        """The statements for its database."""

    @property
    def ask(self) -> Ask:
        """Runs one of them in it."""

    def check_transaction(self) -> None:
        """Raise `ConfigError` where a lock would be gone at once, because each statement commits."""

    def has_passed(self, wish: Wish, *, once: bool) -> bool:
        """Whether this very transaction is known to have passed with the same mark, and the same *once*."""

    def remember(self, wish: Wish, *, once: bool) -> None:
        """Note that it has, for as long as the transaction lasts."""


def place_of(connection: Any) -> Place:
    """The place behind *connection*; imports nothing that the caller hasn't imported already."""
    homes = [each.__module__.split(".")[0] for each in type(connection).__mro__]
    if "sqlalchemy" in homes:
        from celery_fence.fencing.sqlalchemy.place import SqlAlchemyPlace

        return SqlAlchemyPlace.of(connection)
    from celery_fence.fencing.gate.dbapi import DbapiPlace
    from celery_fence.fencing.gate.django import DjangoPlace

    if "django" in homes:
        return DjangoPlace.of(connection)
    place = DbapiPlace.find(connection, homes)
    if place is None:
        raise ConfigError(
            "A guard takes an SQLAlchemy Session or Connection, a connection of sqlite3, psycopg or pymysql, or "
            f"Django's connection, not {type(connection).__module__}.{type(connection).__qualname__}."
        )
    return place


def no_transaction(how: str) -> ConfigError:
    """The error for a connection in autocommit mode; *how* is how to begin a transaction there."""
    return ConfigError(
        "This needs a transaction: the connection is in autocommit mode, where the lock on the row would be "
        f"gone before the next statement. {how}"
    )
