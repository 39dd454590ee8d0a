"""The table of the records, and which statements a database takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery_fence.fencing.gate import mysql as mysql_gate
from celery_fence.fencing.gate import postgresql as postgresql_gate
from celery_fence.fencing.gate import sqlite as sqlite_gate
from celery_fence.fencing.gate.place import Place, place_of
from celery_fence.fencing.gate.table import dialect_of
from celery_fence.fencing.idempotency import mysql, postgresql, sqlite
from celery_fence.fencing.idempotency.record import Dialect

DIALECTS: Final[Mapping[object, Dialect]] = {
    postgresql_gate: postgresql,
    mysql_gate: mysql,
    sqlite_gate: sqlite,
}
"""A place knows its database by the statements of the gate there."""


def dialect_at(place: Place) -> Dialect:
    """The records' statements for the database of *place*."""
    return DIALECTS[place.dialect]


def record_ddl(dialect: str) -> str:
    """
    The statement that makes the table ``fence_records`` where it isn't there yet.

    *dialect* is ``postgresql``, ``mysql``, ``mariadb`` or ``sqlite``. Raises `ConfigError` for others.
    """
    return DIALECTS[dialect_of(dialect)].DDL.strip()


def create_records(connection: Any) -> None:
    """
    Make the table ``fence_records`` where it isn't there yet; one statement, in the caller's transaction.

    *connection* is one that `claim` takes. MySQL and MariaDB commit the transaction with it.
    """
    place = place_of(connection)
    place.ask(dialect_at(place).DDL, {})
