"""
The SQL side of a round: guarded writes, and the truth about what was written.

Each key has a row in `marks` with the highest token seen. A guarded write is one transaction
that moves the mark, which locks its row, and only then writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool

PATIENCE = 30.0
"""Seconds a write waits for another one: a process may be frozen in the middle of its own."""

WRITTEN = "key VARCHAR(80), token BIGINT, owner VARCHAR(80), task_id VARCHAR(80), run VARCHAR(80), effect VARCHAR(120)"
TABLES = (
    "CREATE TABLE marks (key VARCHAR(80) PRIMARY KEY, token BIGINT NOT NULL, owner VARCHAR(80) NOT NULL)",
    f"CREATE TABLE writes (seq {{serial}}, {WRITTEN})",
    f"CREATE TABLE refusals (seq {{serial}}, {WRITTEN}, seen BIGINT)",
)
SERIALS = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgresql": "BIGSERIAL PRIMARY KEY"}

PASS = text(
    "UPDATE marks SET token = :token, owner = :owner WHERE key = :key"
    " AND (token < :token OR (token = :token AND owner = :owner))"
)
WRITE = text(
    "INSERT INTO writes (key, token, owner, task_id, run, effect)"
    " VALUES (:key, :token, :owner, :task_id, :run, :effect)"
)
REFUSE = text(
    "INSERT INTO refusals (key, token, owner, task_id, run, effect, seen)"
    " VALUES (:key, :token, :owner, :task_id, :run, :effect, :seen)"
)
SEEN = text("SELECT token FROM marks WHERE key = :key")


class StaleWrite(RuntimeError):
    """The write came with an older token than one already seen: nothing was changed, and it was counted."""

    def __init__(self, key: str, token: int, seen: int) -> None:
        super().__init__(key, token, seen)
        self.key = key
        self.token = token
        self.seen = seen


@dataclass(frozen=True, slots=True)
class Effect:
    """What is written: *effect* names it, the rest says by which run under which lease."""

    key: str
    token: int
    owner: str
    task_id: str
    run: str
    effect: str


class Ledger:
    """
    The ledger at a database *url*, with one connection for each write.

    So nothing is shared with a fork, and nothing is left open by a kill.
    """

    guarded: ClassVar[bool] = True
    """A negative control switches it off: then stale writes are let in."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = _engine(url)

    def create(self, keys: tuple[str, ...]) -> None:
        """Make the tables, with a mark for every key."""
        serial = SERIALS[self._engine.dialect.name]
        with self._engine.begin() as connection:
            for table in ("marks", "writes", "refusals"):
                connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
            for statement in TABLES:
                connection.execute(text(statement.format(serial=serial)))
            for key in keys:
                connection.execute(text("INSERT INTO marks VALUES (:key, 0, '')"), {"key": key})

    def write(self, effect: Effect) -> None:
        """Write *effect* if its token isn't stale, else count the refusal and raise `StaleWrite`; one transaction."""
        row = {name: getattr(effect, name) for name in Effect.__slots__}
        with self._engine.begin() as connection:
            seen = self._stale(connection, row)
            connection.execute(WRITE if seen is None else REFUSE, {**row, "seen": seen})
        if seen is not None:
            raise StaleWrite(effect.key, effect.token, seen)

    def refused(self) -> int:
        """How many writes were refused so far."""
        with self._engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM refusals")).scalar_one())

    def keep_open(self) -> Connection:
        """A connection that keeps SQLite from cleaning its log up at the end of each write; close it at the end."""
        connection = self._engine.connect()
        connection.execute(text("SELECT count(*) FROM marks")).scalar_one()
        connection.rollback()
        return connection

    def _stale(self, connection: Connection, row: dict[str, Any]) -> int | None:
        """The newer token that was seen, or None where this one passes; the mark is locked until the commit."""
        if connection.execute(PASS, row).rowcount or not self.guarded:
            return None
        return int(connection.execute(SEEN, row).scalar_one())


def _engine(url: str) -> Engine:
    engine = create_engine(url, poolclass=NullPool, connect_args=_connect_args(url))
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _connect_args(url: str) -> dict[str, Any]:
    return {"timeout": PATIENCE, "check_same_thread": False} if url.startswith("sqlite") else {}


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    # The machine doesn't crash in a round; processes do, and they can't lose what they gave to the kernel.
    connection.execute("PRAGMA synchronous=OFF")
