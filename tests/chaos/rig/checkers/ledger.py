"""The SQL ledger as the checkers read it: what was accepted and refused, in the order in which it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.pool import NullPool

from rig.history import Record

FILE = "ledger.sqlite"
FIELDS = ("seq", "key", "token", "owner", "task_id", "run", "effect")


@dataclass(frozen=True, slots=True)
class Row:
    """An accepted or a refused write; *seen* is the token that a refused one met, else 0."""

    seq: int
    key: str
    token: int
    owner: str
    task_id: str
    run: str
    effect: str
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Accepted and refused writes, each in their order."""

    writes: Sequence[Row] = ()
    refusals: Sequence[Row] = ()


def read_ledger(run_directory: str | Path, records: Iterable[Record]) -> Ledger:
    """The ledger of a run: where its first record says, else the file in its directory; empty where there is none."""
    url = next((record.get("ledger") for record in records if record.what == "run"), None)
    file = Path(run_directory) / FILE
    if url is None and not file.exists():
        return Ledger()
    engine = sqlalchemy.create_engine(url or f"sqlite:///{file}", poolclass=NullPool)
    try:
        with engine.connect() as connection:
            # One after the other: an accepted write is there before any refusal that it caused.
            refusals = _rows(connection, "refusals", (*FIELDS, "seen"))
            return Ledger(_rows(connection, "writes", FIELDS), refusals)
    finally:
        engine.dispose()


def _rows(connection: Any, table: str, names: Sequence[str]) -> list[Row]:
    if not sqlalchemy.inspect(connection).has_table(table):
        return []
    columns = [sqlalchemy.column(name) for name in names]
    asked = (
        sqlalchemy.select(*columns).select_from(sqlalchemy.table(table)).order_by(sqlalchemy.column("seq"))
    )
    return [Row(*row) for row in connection.execute(asked)]
