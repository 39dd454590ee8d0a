"""A transaction of a plain DB-API connection (PEP 249)."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from celery_fence.fencing.gate import mysql, postgresql, sqlite
from celery_fence.fencing.gate.mark import Answer, Dialect, Wish
from celery_fence.fencing.gate.place import no_transaction

PARAMETER: Final = re.compile(r":(\w+)")

IDLE: Final = 0
"""psycopg's ``TransactionStatus.IDLE``."""

IN_TRANSACTION: Final = 1
"""MySQL's ``SERVER_STATUS_IN_TRANS``, from its last answer."""

LEGACY: Final = -1
"""sqlite3's ``LEGACY_TRANSACTION_CONTROL``: `isolation_level` decides, as it did before Python 3.12."""


@dataclass(frozen=True, slots=True)
class Driver:
    """What is to be known of a driver: its statements, its parameters, its cursors, and how it autocommits."""

    dialect: Dialect
    parameter: str
    autocommits: Callable[[Any], bool]
    cursor: Callable[[Any], Any]
    begin: str


@dataclass(frozen=True, slots=True)
class DbapiPlace:
    """
    The transaction that a DB-API connection is in.

    It can't be told from the next one, so nothing is remembered: passing again costs
    another round trip, and with `once` finds its own mark.
    """

    connection: Any
    driver: Driver

    @classmethod
    def find(cls, connection: Any, homes: Sequence[str]) -> Self | None:
        """The place of *connection*, whose class comes from the packages *homes*; None if it is no connection."""
        drivers = (DRIVERS[home] for home in homes if home in DRIVERS)
        driver = next(drivers, None)
        whole = all(
            callable(getattr(connection, method, None)) for method in ("cursor", "commit", "rollback")
        ) and not inspect.iscoroutinefunction(connection.commit)
        return cls(connection, driver) if driver is not None and whole else None

    @property
    def dialect(self) -> Dialect:
        """See `Place`."""
        return self.driver.dialect

    def check_transaction(self) -> None:
        """See `Place`; asks the driver, not the server."""
        if self.driver.autocommits(self.connection):
            raise no_transaction(self.driver.begin)

    def has_passed(self, wish: Wish, *, once: bool) -> bool:  # noqa: ARG002 - see the class
        """Never known."""
        return False

    def remember(self, wish: Wish, *, once: bool) -> None:
        """Not kept."""

    def ask(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        """See `mark.Ask`."""
        cursor = self.driver.cursor(self.connection)
        try:
            cursor.execute(PARAMETER.sub(self.driver.parameter, sql), dict(parameters))
            return answer_of(cursor)
        finally:
            cursor.close()


def answer_of(cursor: Any) -> Answer:
    """What *cursor* says of the statement it has just run."""
    rows = [_in_order(row) for row in cursor.fetchall()] if cursor.description else []
    return Answer(rows, cursor.rowcount, getattr(cursor, "lastrowid", None))


def _in_order(row: Any) -> tuple[Any, ...]:
    """The row's values, also where the user's cursors give dicts."""
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)


def _sqlite_autocommits(connection: Any) -> bool:
    if connection.in_transaction:
        return False
    autocommit = getattr(connection, "autocommit", LEGACY)
    return connection.isolation_level is None if autocommit == LEGACY else autocommit is True


def _psycopg_autocommits(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status == IDLE


def _pymysql_autocommits(connection: Any) -> bool:
    return bool(connection.get_autocommit()) and not connection.server_status & IN_TRANSACTION


def _plain_cursor(connection: Any) -> Any:
    return connection.cursor()


def _sqlite_cursor(connection: Any) -> Any:
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def _psycopg_cursor(connection: Any) -> Any:
    return connection.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)


DRIVERS: Final[dict[str, Driver]] = {
    "sqlite3": Driver(sqlite, r":\1", _sqlite_autocommits, _sqlite_cursor, "Run BEGIN IMMEDIATE first."),
    "psycopg": Driver(
        postgresql,
        r"%(\1)s",
        _psycopg_autocommits,
        _psycopg_cursor,
        "Write inside `with connection.transaction():`.",
    ),
    "pymysql": Driver(
        mysql, r"%(\1)s", _pymysql_autocommits, _plain_cursor, "Call connection.begin() first."
    ),
}
