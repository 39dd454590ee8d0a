"""What is asked before and after a `fenced_insert`: whose rows it would overwrite, and whether it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Insert
from sqlalchemy.sql.elements import BindParameter

from celery_fence.errors import LockKeyError, ScopeMismatch, UnfencedWrite
from celery_fence.fencing.sqlalchemy.call import CHECK, Call
from celery_fence.fencing.sqlalchemy.guard import NOBODYS
from celery_fence.fencing.sqlalchemy.rule import Rule
from celery_fence.fencing.sqlalchemy.seen import Lock, Seen, rows_seen
from celery_fence.fencing.writer import Writer, choose, is_stale, let_pass, refuse

UNCOUNTED: Final = frozenset({"mysql", "mariadb"})
"""Dialects whose row count doesn't tell a new row from one that was left as it is."""


def fenced(call: Call, rule: Rule, writer: Writer, on: Sequence[str]) -> Call:
    """
    *call*, which has its condition in itself, with the check that it wrote all its rows.

    Raises:
        ScopeMismatch: a row is of another key than the writer's.
        UnfencedWrite: its rows can't be known.

    """
    if writer.token is None:
        let_pass(writer, scope=writer.key or str(call.table), what=call.what)
        return call
    if writer.mode == "off":
        return call
    if call.statement.select is not None or call.statement._multi_values:  # noqa: SLF001 - no public name
        raise UnfencedWrite(
            f"A fenced_insert into {call.table} takes its rows as the second argument of execute(), or one row in "
            "values(): nothing was written."
        )
    rows = [{**given(call.statement), **row} for row in (call.rows or [{}])]
    check = Upserted(call, rule, writer, tuple(on), rows)
    check.check_keys()
    if not writer.enforces:
        check.find(lock="update")
        return call
    call.check_transaction()
    statement = call.statement.execution_options(**{CHECK: check})
    return replace(call, statement=statement)


def given(statement: Insert) -> dict[str, Any]:
    """The values that stand in an INSERT itself, by column key."""
    values: Mapping[Any, Any] = statement._values or {}  # noqa: SLF001 - no public name
    return {
        getattr(column, "key", column): value.value
        for column, value in values.items()
        if isinstance(value, BindParameter)
    }


@dataclass(frozen=True, slots=True)
class Upserted:
    """Checks that every one of *rows* was inserted or updated by *writer*."""

    call: Call
    rule: Rule
    writer: Writer
    on: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]

    def __call__(self, connection: Connection, result: CursorResult[Any]) -> None:
        """Raise the reason why a row wasn't written; one SELECT where the database doesn't say it by the count."""
        if connection.dialect.name in UNCOUNTED or result.rowcount != len(self.rows):
            self._check_there(self.find(lock="share"))

    def check_keys(self) -> None:
        """Raise `ScopeMismatch` if one of the rows is to be of another key than the writer's."""
        for row in self.rows if self.rule.template is not None else ():
            try:
                scope = self.rule.key_of(
                    {name: row.get(column) for name, column in self.rule.columns.items()}
                )
            except LockKeyError:
                continue  # its key comes from the database, so it is new
            NOBODYS.checked(choose((self.writer,), scope), scope, self.call.what)

    def find(self, *, lock: Lock) -> list[Seen]:
        """The rows that are there; raises if one is another's: of another key, or of a newer token."""
        there = self._wanted()
        connection, table = self.call.connection, self.call.table
        options = self.call.options
        seen = rows_seen(connection, table, self.rule, self.on, there, lock=lock, options=options)
        for found in seen.values():
            if self.rule.template is not None and found.key(self.rule) != self.writer.key:
                self._refuse_other_key(found)
            elif is_stale(self.writer, found.token, found.owner):
                scope = self.writer.key
                refuse(
                    self.writer, scope=scope, seen=found.token, seen_owner=found.owner, what=self.call.what
                )
        return list(seen.values())

    def _wanted(self) -> list[tuple[Any, ...]]:
        """The rows by the columns that make two of them the same, where these are known."""
        wanted = (tuple(row.get(name) for name in self.on) for row in self.rows)
        return [values for values in wanted if None not in values]

    def _check_there(self, seen: Sequence[Seen]) -> None:
        """
        Raise `UnfencedWrite` if a row was neither inserted nor updated.

        In MySQL any unique index makes two rows the same, whatever *on* says.
        """
        written = [found for found in seen if found.token == self.writer.token]
        if len(written) < len(set(self._wanted())):
            raise UnfencedWrite(
                f"{self.call.what} has met a row that is the same by another unique index than that of "
                f"{', '.join(self.on)}: it wasn't written. Roll back, and name the columns of that index with on=[...]."
            )

    def _refuse_other_key(self, found: Seen) -> None:
        scope = found.key(self.rule)
        if not self.writer.enforces:
            let_pass(replace(self.writer, token=None), scope=scope, what=self.call.what)
            return
        raise ScopeMismatch(
            f"{self.call.what} under {self.writer.key!r} meets a row of {scope!r}: tokens of two keys can't be "
            "compared, so nothing was written.",
            scope=scope,
            key=self.writer.key,
        )
