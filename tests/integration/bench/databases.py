"""
Databases of a test's own: SQLite in a file, PostgreSQL, MariaDB; each with its sync and its async driver.

SQLAlchemy's sync drivers can be others: FENCE_POSTGRESQL_DRIVER=psycopg2, FENCE_MARIADB_DRIVER=mysqldb.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

DATABASES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.needs("postgres")),
    pytest.param("mariadb", marks=pytest.mark.needs("mariadb")),
]

POSTGRESQL_DRIVER = os.environ.get("FENCE_POSTGRESQL_DRIVER", "psycopg")
MARIADB_DRIVER = os.environ.get("FENCE_MARIADB_DRIVER", "pymysql")

SERVERS = {
    "postgres": (f"postgresql+{POSTGRESQL_DRIVER}://postgres@127.0.0.1:5432/", "postgres"),
    "mariadb": (f"mysql+{MARIADB_DRIVER}://root@127.0.0.1:3306/", ""),
}

ASYNC = {"pysqlite": "aiosqlite", POSTGRESQL_DRIVER: "asyncpg", MARIADB_DRIVER: "aiomysql"}


@dataclass(frozen=True)
class Database:
    """An empty database, *url* with the driver for sync code."""

    kind: str
    url: str

    def engine(self, **options: Any) -> Engine:
        engine = create_engine(self.url, **options)
        if self.kind == "sqlite":
            event.listen(engine, "connect", _patient)
        return engine

    def async_engine(self, **options: Any) -> AsyncEngine:
        url = self.url
        for sync, its_async in ASYNC.items():
            url = url.replace(f"+{sync}:", f"+{its_async}:")
        return create_async_engine(url, **options)


def told_to_commit(engine: Engine) -> Engine:
    """*engine*, whose driver is told to commit each statement by itself, behind SQLAlchemy's back."""

    def tell(connection: Any, _record: Any) -> None:
        if callable(connection.autocommit):
            connection.autocommit(True)
        else:
            connection.autocommit = True

    event.listen(engine, "connect", tell)
    return engine


@contextmanager
def new_database(kind: str, directory: Path) -> Iterator[Database]:
    """A database that is dropped at the end, whoever is still connected to it."""
    name = f"fence_{uuid.uuid4().hex[:16]}"
    if kind == "sqlite":
        yield Database(kind, f"sqlite+pysqlite:///{directory / name}.db")
        return
    server, first = SERVERS[kind]
    admin = create_engine(server + first, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        try:
            yield Database(kind, server + name)
        finally:
            force = " WITH (FORCE)" if kind == "postgres" else ""
            connection.execute(text(f"DROP DATABASE {name}{force}"))
    admin.dispose()


def _patient(connection: Any, _record: Any) -> None:
    """SQLite has one writer at a time: the others wait, up to this many milliseconds."""
    connection.execute("PRAGMA busy_timeout = 20000")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
