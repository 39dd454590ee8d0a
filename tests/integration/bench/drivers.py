"""The databases of `bench.databases` as their plain drivers see them: isolation levels, and who waits for whom."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from bench.databases import ASYNC, Database, new_database

KINDS = {"postgresql": "postgres", "mariadb": "mariadb", "sqlite": "sqlite"}
"""What `bench.databases` calls them, by their dialects."""

SERIAL = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
LEVELS = {"postgresql": SERIAL, "mariadb": SERIAL, "sqlite": ["SERIALIZABLE"]}

BUSY_TIMEOUT = 30.0
PATIENCE = 30.0


def parameters(*names):
    """These databases, or all, as pytest's parameters: skipped where the service isn't there."""
    return [pytest.param(name, marks=_needs(name)) for name in names or KINDS]


def levels(*names):
    """Each isolation level of each of them, as pytest's parameters."""
    return [
        pytest.param(name, level, marks=_needs(name), id=f"{name} {level.lower()}")
        for name in names or KINDS
        for level in LEVELS[name]
    ]


def _needs(name):
    return () if name == "sqlite" else pytest.mark.needs(KINDS[name])


@dataclass(frozen=True)
class Plain:
    """An empty database; *name* is its dialect."""

    name: str
    database: Database

    @property
    def place(self):
        """Its name on the server, or SQLite's file."""
        return make_url(self.database.url).database

    def connect(self, level=None, *, autocommit=False, busy_timeout=BUSY_TIMEOUT, **given):
        """A connection of the plain driver, at the isolation level *level*."""
        if self.name == "postgresql":
            connection = psycopg.connect(
                host="127.0.0.1", user="postgres", dbname=self.place, autocommit=autocommit, **given
            )
            if level:
                connection.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_")]
            return connection
        if self.name == "mariadb":
            connection = pymysql.connect(
                host="127.0.0.1", user="root", database=self.place, autocommit=autocommit, **given
            )
            if level:
                connection.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            return connection
        given.setdefault("isolation_level", None if autocommit else "DEFERRED")
        return sqlite3.connect(self.place, timeout=busy_timeout, check_same_thread=False, **given)

    def url(self, *, asynchronous=False):
        """Its SQLAlchemy URL."""
        url = self.database.url
        for sync, its_async in ASYNC.items() if asynchronous else ():
            url = url.replace(f"+{sync}:", f"+{its_async}:")
        return url

    def run(self, *statements):
        """Run statements and commit; answers the rows of the last one."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            rows = []
            try:
                for statement in statements:
                    cursor.execute(statement)
                    rows = list(cursor.fetchall()) if cursor.description else []
                connection.commit()
            finally:
                connection.rollback()  # SQLite keeps its lock while an error's traceback has the cursor
            return rows

    def wait_for_a_waiter(self):
        """Return when a transaction of this database waits for a lock of another."""
        question = {
            "postgresql": (
                "SELECT count(*) FROM pg_stat_activity"
                f" WHERE wait_event_type = 'Lock' AND datname = '{self.place}'"
            ),
            "mariadb": (
                "SELECT count(*) FROM information_schema.innodb_trx"
                " JOIN information_schema.processlist ON trx_mysql_thread_id = id"
                f" WHERE trx_state = 'LOCK WAIT' AND db = '{self.place}'"
            ),
        }[self.name]
        deadline = time.monotonic() + PATIENCE
        while self.run(question)[0][0] == 0:
            assert time.monotonic() < deadline, "nobody waits"
            time.sleep(0.12)  # InnoDB answers from a cache, which it renews when nobody has asked for 0.1 s


@contextmanager
def plain_database(name: str, directory: Path) -> Iterator[Plain]:
    """A database of one's own; in SQLite readers don't hinder the writer."""
    with new_database(KINDS[name], directory) as made:
        plain = Plain(name, made)
        if name == "sqlite":
            plain.run("PRAGMA journal_mode = WAL")
        yield plain
