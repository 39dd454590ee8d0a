"""
ON CONFLICT DO UPDATE, and MySQL's ON DUPLICATE KEY UPDATE, with the comparison of tokens.

The new row brings the writer's token and owner, so the condition compares the two rows
and has no parameters of its own. MySQL has no WHERE there: each column is set to its
new value or to what it is, the token last, because MySQL goes from left to right and
the condition must see the old token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Insert, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ClauseElement

from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.sqlalchemy.rule import OWNER, TOKEN


class Upsert(ClauseElement):
    """
    What happens to a row that is there already, by the columns *on*.

    The columns *key* must be equal in both rows: they make the key whose tokens are
    compared. Not *comparing*: every row is updated, but none loses a newer token.
    """

    inherit_cache = False

    def __init__(self, on: Sequence[str], key: Sequence[str], *, comparing: bool) -> None:
        self.on = tuple(on)
        self.key = tuple(key)
        self.comparing = comparing


@dataclass(frozen=True, slots=True)
class _Writing:
    """How one dialect writes the parts."""

    compiler: SQLCompiler
    upsert: Upsert
    new: Callable[[str], str]
    same: str

    @property
    def statement(self) -> Insert:
        found = self.compiler.stack[-1]["selectable"]
        if not isinstance(found, Insert):
            raise UnfencedWrite("A fenced upsert belongs to an INSERT.")
        return found

    @property
    def table(self) -> Table:
        return cast("Table", self.statement.table)

    def name(self, column: str) -> str:
        return self.compiler.preparer.format_column(self.table.c[column])

    def old(self, column: str) -> str:
        table = self.compiler.preparer.format_table(self.table, use_schema=False)
        return f"{table}.{self.name(column)}"

    def condition(self) -> str:
        token, owner = self.old(TOKEN), self.old(OWNER)
        newer = f"{token} < {self.new(TOKEN)}"
        mine = f"{token} = {self.new(TOKEN)} AND {owner} = {self.new(OWNER)}"
        key = "".join(f" AND {self.old(name)} {self.same} {self.new(name)}" for name in self.upsert.key)
        return f"({newer} OR {mine}){key}"

    def changed(self) -> list[str]:
        """The columns that the statement gives, without those that must be as they are; the token last."""
        values: Mapping[Any, Any] = self.statement._values or {}  # noqa: SLF001 - no public name
        given = [getattr(each, "key", each) for each in values]
        kept = {*self.upsert.on, *self.upsert.key, TOKEN, OWNER}
        names = dict.fromkeys([*given, *(self.compiler.column_keys or ())])
        return [name for name in names if name in self.table.c and name not in kept]

    def stamps(self) -> list[str]:
        """In mode ``shadow``: the newer of both tokens, and its owner."""
        older = f"{self.old(TOKEN)} > {self.new(TOKEN)}"
        return [
            f"{self.name(name)} = CASE WHEN {older} THEN {self.old(name)} ELSE {self.new(name)} END"
            for name in (OWNER, TOKEN)
        ]


@compiles(Upsert)
def _unknown(_upsert: Upsert, compiler: Any, **_: Any) -> str:
    raise UnfencedWrite(
        f"A fenced_insert is for PostgreSQL, SQLite, MySQL and MariaDB, and not for {compiler.dialect.name}."
    )


@compiles(Upsert, "postgresql")
def _postgresql(upsert: Upsert, compiler: SQLCompiler, **_: Any) -> str:
    return _on_conflict(upsert, compiler, same="IS NOT DISTINCT FROM")


@compiles(Upsert, "sqlite")
def _sqlite(upsert: Upsert, compiler: SQLCompiler, **_: Any) -> str:
    return _on_conflict(upsert, compiler, same="IS")


@compiles(Upsert, "mysql")
@compiles(Upsert, "mariadb")
def _mysql(upsert: Upsert, compiler: SQLCompiler, **_: Any) -> str:
    def new(column: str) -> str:
        return f"VALUES({write.name(column)})"

    write = _Writing(compiler, upsert, new, "<=>")
    if not upsert.comparing:
        sets = [f"{write.name(name)} = {new(name)}" for name in write.changed()]
        return f"ON DUPLICATE KEY UPDATE {', '.join([*sets, *write.stamps()])}"
    sets = [
        f"{write.name(name)} = IF({write.condition()}, {new(name)}, {write.old(name)})"
        for name in (*write.changed(), OWNER, TOKEN)
    ]
    return f"ON DUPLICATE KEY UPDATE {', '.join(sets)}"


def _on_conflict(upsert: Upsert, compiler: SQLCompiler, *, same: str) -> str:
    def new(column: str) -> str:
        return f"excluded.{write.name(column)}"

    write = _Writing(compiler, upsert, new, same)
    names = write.changed() if not upsert.comparing else [*write.changed(), OWNER, TOKEN]
    sets = [f"{write.name(name)} = {new(name)}" for name in names]
    stamps = [] if upsert.comparing else write.stamps()
    where = f" WHERE {write.condition()}" if upsert.comparing else ""
    on = ", ".join(write.name(name) for name in upsert.on)
    return f"ON CONFLICT ({on}) DO UPDATE SET {', '.join([*sets, *stamps])}{where}"
