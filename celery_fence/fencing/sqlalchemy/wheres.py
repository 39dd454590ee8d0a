"""
Statements with a WHERE of their own: `update(Payout).where(...)`, `query.delete()`, Core.

Which rows they match isn't known beforehand. First the keys of the rows are asked for:
all must be of one key, that of the lease. The statement then carries the key and the
comparison of tokens. Afterwards no row that it was meant for may be left that has a
newer token. So such a statement costs two round trips more than without a fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Select,
    Update,
    and_,
    bindparam,
    case,
    false,
    select,
)

from celery_fence.errors import ScopeMismatch
from celery_fence.fencing.sqlalchemy.call import CHECK, FENCED, Call, Fenced, is_ordered
from celery_fence.fencing.sqlalchemy.condition import condition, stale_rows
from celery_fence.fencing.sqlalchemy.guard import NOBODYS, Guard
from celery_fence.fencing.sqlalchemy.moves import check_move
from celery_fence.fencing.sqlalchemy.refusing import refuse_unfenced
from celery_fence.fencing.sqlalchemy.rule import OWNER, TOKEN, Rule
from celery_fence.fencing.sqlalchemy.seen import locked
from celery_fence.fencing.writer import Writer, choose, refuse


def fenced(call: Call, rule: Rule) -> Call:
    """*call* with the condition that all its rows are of one key and of no newer token."""
    made = call.statement.get_execution_options().get(FENCED)
    made = made if isinstance(made, Fenced) else None
    writers = (made.writer,) if made is not None else call.guard.writers(rule)
    if writers and writers[0].mode == "off" and writers[0].token is not None:
        return call
    if len(call.rows) > 1:
        what = f"{call.what} with a WHERE of its own for several sets of parameters"
        instead = (
            "Execute it once for each, or write rows by primary key: session.execute(update(Model), [...])."
        )
        refuse_unfenced(call.guard, call.table, what, instead)
        return call
    if is_ordered(call.statement):
        what = f"{call.what} with ordered_values()"
        refuse_unfenced(call.guard, call.table, what, "Use values().")
        return call
    where = Where(call, rule, made)
    writer, scope, same_key = where.writer(writers)
    if writer is None:
        return call
    if not writer.enforces:
        where.tell(writer, scope, same_key)
        return replace(call, statement=where.statement((), (), _kept(call, writer)))
    call.check_transaction()
    added = () if made is not None else (condition(call.table, writer),)
    statement = where.statement(same_key, added, {} if made is not None else _stamp(call, writer))
    check = NoneLeft(where, writer, scope, same_key)
    return replace(call, statement=statement.execution_options(**{CHECK: check}))


@dataclass(frozen=True, slots=True)
class Where:
    """The rows that a call is meant for."""

    call: Call
    rule: Rule
    made: Fenced | None

    def writer(self, writers: Sequence[Writer]) -> tuple[Writer | None, str, Sequence[ColumnElement[bool]]]:
        """
        Who writes, for which key, and the condition that a row is of that key: one SELECT.

        Raises:
            ScopeMismatch: rows of several keys, or of another one than the lease's.
            UnfencedWrite: nobody here can write to the table.

        """
        guard, what = self.call.guard, self.call.what
        if self.rule.template is None:
            writer = writers[0] if writers else guard.writer_for(self.rule, str(self.call.table), what)
            checked = writer and self._guard.checked(writer, writer.key or str(self.call.table), what)
            return checked, checked.key if checked else "", ()
        keys = self._keys()
        scopes = list(dict.fromkeys(self.rule.key_of_row(values) for values in keys))
        if len(scopes) > 1:
            self._refuse_several(writers, scopes)
            return None, scopes[0], ()
        if not scopes:
            return self._nobody(writers), "", (false(),)
        if self.made is None:
            writer = guard.writer_for(self.rule, scopes[0], what)
        else:
            writer = self._guard.checked(choose((self.made.writer,), scopes[0]), scopes[0], what)
        check_move(self.call, self.rule, writer, keys[0], self.call.rows[0] if self.call.rows else {})
        return writer, scopes[0], self._same(keys)

    def statement(
        self,
        same_key: Sequence[ColumnElement[bool]],
        added: Sequence[ColumnElement[bool]],
        stamp: dict[Any, Any],
    ) -> Any:
        """The call's statement with more conditions, and a stamp."""
        conditions = (*same_key, *added)
        statement = self.call.statement.where(*conditions) if conditions else self.call.statement
        return statement.values(stamp) if stamp else statement

    def tell(self, writer: Writer, scope: str, same_key: Sequence[ColumnElement[bool]]) -> None:
        """Tell of a stale row that mode ``shadow`` lets pass; `StaleToken` in mode ``enforce``: one SELECT."""
        table = self.call.table
        asked = (
            self._select(table.c[TOKEN], table.c[OWNER]).where(*same_key, stale_rows(table, writer)).limit(1)
        )
        row: Any = self._execute(locked(self.call.connection, asked, "share")).first()
        if row is not None:
            refuse(writer, scope=scope, seen=row[0], seen_owner=row[1], what=self.call.what)

    @property
    def _guard(self) -> Guard:
        """The session's guard; none for a statement that was made for a lease: it has left nothing behind."""
        return self.call.guard if self.made is None else NOBODYS

    def _keys(self) -> list[tuple[Any, ...]]:
        columns = self.rule.key_columns(self.call.table)
        if not columns:
            return [()]
        asked: Select[Any] = self._select(*columns).distinct().limit(2)
        # An old snapshot of MySQL's may not have the rows that the UPDATE would find.
        current = locked(self.call.connection, asked, "current")
        found = self._execute(asked).all() or (self._execute(current).all() if current is not asked else [])
        return [(*row,) for row in found]

    def _same(self, keys: Sequence[tuple[Any, ...]]) -> Sequence[ColumnElement[bool]]:
        columns = self.rule.key_columns(self.call.table)
        return (
            [and_(*(column == value for column, value in zip(columns, keys[0], strict=True)))]
            if columns
            else []
        )

    def _select(self, *columns: Any) -> Select[Any]:
        """A SELECT of the rows that the statement is meant for."""
        statement = self.call.statement
        added = self.made.added if self.made is not None else None
        criteria = [each for each in statement._where_criteria if each is not added]  # noqa: SLF001 - no public name
        entity = statement._propagate_attrs.get("plugin_subject")  # noqa: SLF001 - adds what the ORM adds to a WHERE
        asked = select(*columns).select_from(self.call.table if entity is None else entity).where(*criteria)
        return asked.options(*statement._with_options)  # noqa: SLF001

    def _execute(self, asked: Select[Any]) -> CursorResult[Any]:
        return self.call.ask(asked, self.call.rows[0] if self.call.rows else None)

    def _refuse_several(self, writers: Sequence[Writer], scopes: Sequence[str]) -> None:
        enforces = writers[0].enforces if writers else self.call.guard.mode_of(self.rule) == "enforce"
        if enforces:
            raise ScopeMismatch(
                f"{self.call.what} matches rows of several keys, such as {scopes[0]!r} and {scopes[1]!r}: a token "
                "counts within one key only, so nothing was written. Narrow the WHERE to the rows of one key.",
                scope=scopes[1],
                key=writers[0].key if writers else None,
            )
        self.call.guard.let_pass(self.rule, scopes[0], f"{self.call.what} of several keys")

    def _nobody(self, writers: Sequence[Writer]) -> Writer | None:
        """Who writes where no row is matched: a run without a lease is refused all the same."""
        if writers and writers[0].token is not None:
            return writers[0]
        return self.call.guard.writer_for(self.rule, str(self.call.table), self.call.what)


@dataclass(frozen=True, slots=True)
class NoneLeft:
    """Checks that no row was left out for its newer token."""

    where: Where
    writer: Writer
    scope: str
    same_key: Sequence[ColumnElement[bool]]

    def __call__(self, _connection: Connection, _result: CursorResult[Any]) -> None:
        """Raise `StaleToken` if there is one."""
        self.where.tell(self.writer, self.scope, self.same_key)


def _stamp(call: Call, writer: Writer) -> dict[Any, Any]:
    if not isinstance(call.statement, Update):
        return {}
    return {call.table.c[TOKEN]: writer.token, call.table.c[OWNER]: writer.owner}


def _kept(call: Call, writer: Writer) -> dict[Any, Any]:
    """The stamp in mode ``shadow``: a row that has a newer token keeps it."""
    if not isinstance(call.statement, Update):
        return {}
    token, owner = call.table.c[TOKEN], call.table.c[OWNER]
    own = bindparam(None, writer.token, type_=token.type, unique=True)
    named = bindparam(None, writer.owner, type_=owner.type, unique=True)
    return {owner: case((token <= own, named), else_=owner), token: case((token < own, own), else_=token)}
