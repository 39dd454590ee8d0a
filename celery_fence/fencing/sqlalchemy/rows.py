"""
Rows that are written by primary key: the flushes of the unit of work, and its bulk updates.

The condition and its parameters are added to the very statement, so a flush costs no
round trip more than without a fence. Only when fewer rows were matched than were to
be written, or where the driver can't count them, the rows are looked at: one SELECT.
A bulk update by primary key passes no event in which its rows could be marked, and
is preceded by one SELECT; so is anything in mode ``shadow``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, CursorResult

from celery_fence.fencing.sqlalchemy.call import CHECK, Call
from celery_fence.fencing.sqlalchemy.condition import Mark, row_condition
from celery_fence.fencing.sqlalchemy.errors import RowChanged, RowGone
from celery_fence.fencing.sqlalchemy.moves import check_move
from celery_fence.fencing.sqlalchemy.rule import OWNER, TOKEN, Rule
from celery_fence.fencing.sqlalchemy.seen import Lock, Seen, rows_seen
from celery_fence.fencing.writer import is_stale, refuse


def fenced(call: Call, rule: Rule) -> Call:
    """*call* with the condition for each of its rows."""
    names = call.pk_names(call.table)
    batch = Batch(call, rule, [tuple(row[name] for name in names) for row in call.rows])
    marks, rows = batch.marks(), call.rows
    if None in marks:
        marks, rows = batch.looked_up(marks)
    known = [mark for mark in marks if mark is not None]
    if any(mark.writer is not None and not mark.compares for mark in known):
        rows = batch.told_of(known, rows)
    if not any(mark.compares or mark.missing for mark in known):
        return replace(call, rows=rows)
    call.check_transaction()
    check = Written(batch, known)
    statement = call.statement.where(row_condition(call.table)).execution_options(**{CHECK: check})
    bound = [{**row, **mark.binds()} for row, mark in zip(rows, known, strict=True)]
    return replace(call, statement=statement, rows=bound)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one call, *identities* by their primary keys."""

    call: Call
    rule: Rule
    identities: Sequence[tuple[Any, ...]]

    def marks(self) -> list[Mark | None]:
        """On whose behalf each row is flushed, None where no flush has said so."""
        return [self.call.guard.mark_of((self.call.table, each)) for each in self.identities]

    def looked_up(
        self, marks: Sequence[Mark | None]
    ) -> tuple[list[Mark | None], Sequence[Mapping[str, Any]]]:
        """The *marks* with those that were missing, and the rows' parameters with their stamps: one SELECT."""
        seen = self.seen(self.identities, lock="current")
        known = [
            mark or self._mark(seen.get(each), row)
            for mark, each, row in zip(marks, self.identities, self.call.rows, strict=True)
        ]
        rows: Sequence[Mapping[str, Any]] = self.call.rows
        if self.call.verb == "UPDATE" and any(mark.writer is not None for mark in known):
            rows = [
                {**row, **_stamp(mark, seen.get(each))}
                for row, mark, each in zip(rows, known, self.identities, strict=True)
            ]
        return list(known), rows

    def told_of(
        self, marks: Sequence[Mark], rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """Tell of each stale row that mode ``shadow`` lets pass, and keep its newer token: one SELECT."""
        shadow = [
            each
            for each, mark in zip(self.identities, marks, strict=True)
            if mark.writer is not None and not mark.compares
        ]
        seen = self.seen(shadow, lock="update")
        kept: list[Mapping[str, Any]] = []
        for row, mark, each in zip(rows, marks, self.identities, strict=True):
            found = seen.get(each)
            if found is None or not self._is_stale(mark, found):
                kept.append(row)
                continue
            self.refuse(mark, found)
            newer = {TOKEN: found.token, OWNER: found.owner}
            kept.append({**row, **newer} if TOKEN in row else row)
        return kept

    def seen(self, identities: Sequence[tuple[Any, ...]], *, lock: Lock) -> dict[tuple[Any, ...], Seen]:
        """The rows as they are in the database."""
        names = [column.key for column in self.call.table.primary_key.columns]
        call = self.call
        return rows_seen(
            call.connection, call.table, self.rule, names, identities, lock=lock, options=call.options
        )

    def refuse(self, mark: Mark, found: Seen) -> None:
        """Refuse to write, on behalf of *mark*, a row as it was *found*; see `writer.refuse`."""
        if mark.writer is not None and self._is_stale(mark, found):
            refuse(
                mark.writer, scope=mark.scope, seen=found.token, seen_owner=found.owner, what=self.call.what
            )

    def _is_stale(self, mark: Mark, found: Seen) -> bool:
        return mark.writer is not None and is_stale(mark.writer, found.token, found.owner)

    def _mark(self, found: Seen | None, row: Mapping[str, Any]) -> Mark:
        if found is None:
            return Mark(None, missing=True)
        scope = found.key(self.rule)
        writer = self.call.guard.writer_for(self.rule, scope, self.call.what)
        check_move(self.call, self.rule, writer, found.values, row)
        return Mark(writer, scope)


@dataclass(frozen=True, slots=True)
class Written:
    """Checks that a batch was written as a whole."""

    batch: Batch
    marks: Sequence[Mark]

    def __call__(self, _connection: Connection, result: CursorResult[Any]) -> None:
        """
        Raise the reason why a row wasn't written.

        Each row is matched once at most, so the full number means all, however a driver
        counts. Another number, or none, may mean anything: the rows are looked at.
        """
        if result.rowcount == len(self.marks):
            return
        if self.batch.call.verb == "DELETE":
            self._find_left_over()
        else:
            self._find_unwritten()

    def _find_left_over(self) -> None:
        seen = self.batch.seen(self.batch.identities, lock="share")
        for each, mark in zip(self.batch.identities, self.marks, strict=True):
            found = seen.get(each)
            if found is not None:
                self.batch.refuse(mark, found)
                raise self._changed(each, mark)

    def _find_unwritten(self) -> None:
        now = self._identities_now()
        seen = self.batch.seen([*now, *self.batch.identities], lock="share")
        for each, was, mark in zip(now, self.batch.identities, self.marks, strict=True):
            found = seen.get(each) or seen.get(was)
            if mark.writer is None and not mark.missing:
                continue
            if found is None:
                raise RowGone(f"{self.batch.call.what}: the row {each!r} isn't there any more. Roll back.")
            self.batch.refuse(mark, found)
            if mark.writer is None or found.token != mark.writer.token:
                raise self._changed(each, mark)

    def _identities_now(self) -> list[tuple[Any, ...]]:
        """The primary keys as the UPDATE has left them."""
        columns = self.batch.call.table.primary_key.columns
        return [
            tuple(row.get(column.key, old) for column, old in zip(columns, each, strict=True))
            for row, each in zip(self.batch.call.rows, self.batch.identities, strict=True)
        ]

    def _changed(self, identity: tuple[Any, ...], mark: Mark) -> RowChanged:
        return RowChanged(
            f"{self.batch.call.what}: the row {identity!r} of {mark.scope!r} was changed since it was read, by an "
            f"older holder or a writer without a fence (or {TOKEN} was set by hand, which the mixin does itself). "
            "Roll back, read it again, and write again."
        )


def _stamp(mark: Mark, found: Seen | None) -> dict[str, Any]:
    """What a row is to keep: its writer, or what it has where nobody is to be compared."""
    if mark.writer is not None:
        return {TOKEN: mark.writer.token, OWNER: mark.writer.owner}
    return {TOKEN: found.token if found else 0, OWNER: found.owner if found else None}
