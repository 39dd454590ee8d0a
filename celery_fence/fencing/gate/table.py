"""The table of the gates, for those who make their tables with SQL of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from celery_fence.errors import ConfigError
from celery_fence.fencing.gate import mysql, postgresql, sqlite
from celery_fence.fencing.gate.mark import TABLE, Dialect

DIALECTS: Final[dict[str, Dialect]] = {
    "postgresql": postgresql,
    "mysql": mysql,
    "mariadb": mysql,
    "sqlite": sqlite,
}

MISSING: Final = re.compile(rf"no such table: (\w+\.)?{TABLE}|{TABLE}['\"] (does not|doesn't) exist")
"""What SQLite, PostgreSQL, and MySQL and MariaDB say where the table isn't there."""


def dialect_of(name: str) -> Dialect:
    """The statements for a database; `ConfigError` where there are none."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise ConfigError(
            f"The gate knows PostgreSQL, MySQL, MariaDB and SQLite, and not {name!r}."
        ) from None


def gate_ddl(dialect: str) -> str:
    """
    The statement that makes the table ``fence_gates`` where it isn't there yet.

    *dialect* is ``postgresql``, ``mysql``, ``mariadb`` or ``sqlite``. Raises `ConfigError` for others.
    """
    return dialect_of(dialect).DDL.strip()


def create_gates(connection: Any) -> None:
    """
    Make the table ``fence_gates`` where it isn't there yet; one statement, in the caller's transaction.

    *connection* is one that `pass_gate` takes. MySQL and MariaDB commit the transaction with it.
    """
    from celery_fence.fencing.gate.place import place_of

    place = place_of(connection)
    place.ask(place.dialect.DDL, {})


@contextmanager
def naming_missing_table() -> Iterator[None]:
    """Add to the driver's error where the table isn't there how to make it; the error comes out as it is."""
    try:
        yield
    except Exception as error:
        if MISSING.search(str(getattr(error, "orig", None) or error)):
            error.add_note(
                f"The scope gate keeps its marks in the table {TABLE!r}. Make it with gates_table(metadata) of "
                "celery_fence.fencing.sqlalchemy and create_all or Alembic, with create_gates(connection) or "
                "gate_ddl(dialect) of celery_fence.fencing.gate, or with CreateFenceGates() in a migration of Django's."
            )
        raise
