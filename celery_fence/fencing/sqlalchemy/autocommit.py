"""Whether a connection commits each statement by itself, so that neither a lock nor a rollback reaches further."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, methodcaller
from typing import Any, Final

from sqlalchemy import Connection

from celery_fence.fencing.gate.dbapi import DbapiPlace

IS_TOLD: Final[Mapping[str, Callable[[Any], Any]]] = {
    "MySQLdb": methodcaller("get_autocommit"),
    "aiomysql": methodcaller("get_autocommit"),
    "asyncmy": methodcaller("get_autocommit"),
    "pg8000": attrgetter("autocommit"),
    "psycopg": attrgetter("autocommit"),
    "psycopg2": attrgetter("autocommit"),
}
"""How drivers say so that a gate doesn't take a plain connection of, by their packages; those that ask no server."""


def autocommits(connection: Connection) -> bool:
    """By the isolation level that was set, or by what the driver was told behind SQLAlchemy's back; asks nobody."""
    level = connection.get_execution_options().get("isolation_level")
    level = level or getattr(connection.dialect, "_on_connect_isolation_level", None)
    return level == "AUTOCOMMIT" or _driver_autocommits(connection.connection.driver_connection)


def _driver_autocommits(driven: Any) -> bool:
    homes = [each.__module__.split(".")[0] for each in type(driven).__mro__]
    place = DbapiPlace.find(driven, homes)
    if place is not None:
        return place.driver.autocommits(driven)
    return any(IS_TOLD[home](driven) for home in homes if home in IS_TOLD)
