"""
What the database itself does to fenced rows when another row is deleted.

A foreign key with ON DELETE CASCADE or SET NULL lets the database delete or change rows,
and no guard sees that. So a DELETE is refused while there are fenced rows that it would
reach. The unit of work deletes children by itself, fenced, before their parent, unless it
is told not to (``passive_deletes``); then nothing is left, and the DELETE goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, ForeignKeyConstraint, FromClause, Table, and_, not_, or_, select

from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.sqlalchemy.call import Call
from celery_fence.fencing.sqlalchemy.rule import Rule, rule_of, whole_of

REACHING: Final = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})
"""What a foreign key says where the database is to change the rows that have it."""


def check_cascades(call: Call) -> None:
    """
    Refuse a DELETE that would reach fenced rows: one SELECT for each foreign key that reaches some.

    Raises:
        UnfencedWrite: there are such rows, and their mode is ``enforce``.

    """
    for key in _reaching(call.table):
        rule = rule_of(key.table) or rule_of(whole_of(key.table)) or Rule()
        mode = call.guard.mode_of(rule)
        if mode == "off" or not _is_any_left(call, key):
            continue
        what = f"{call.what}, whereupon the database changes {key.table},"
        if mode == "enforce":
            raise UnfencedWrite(
                f"A guard can't fence {what} by ON DELETE {key.ondelete}: nothing was written. Delete or change those "
                "rows first, or let the session do it (without passive_deletes)."
            )
        call.guard.let_pass(rule, str(key.table), what)


def _reaching(table: Any) -> Iterator[ForeignKeyConstraint]:
    """The foreign keys of fenced tables by which the database goes on from a row of *table*."""
    for other in table.metadata.tables.values() if isinstance(table, Table) else ():
        if rule_of(other) is None and whole_of(other) is None:
            continue
        for key in other.foreign_key_constraints:
            if key.referred_table is table and (key.ondelete or "").upper() in REACHING:
                yield key


def _is_any_left(call: Call, key: ForeignKeyConstraint) -> bool:
    """Whether rows with the foreign *key* point at rows that *call* deletes, and aren't deleted by it."""
    if whole_of(key.table) is call.table:
        return False  # the rest of the very row
    child = key.table.alias()
    points = [child.c[element.parent.key] == element.column for element in key.elements]
    asked = select(*child.primary_key).where(*points).limit(1)
    if not call.by_primary_key:
        asked = asked.where(*call.statement._where_criteria)  # noqa: SLF001 - no public name
        return any(call.connection.execute(asked, dict(row)).first() for row in call.rows or [{}])
    asked = asked.where(_those(call, call.table))
    if key.table is call.table:
        asked = asked.where(not_(_those(call, child)))
    return call.connection.execute(asked).first() is not None


def _those(call: Call, table: FromClause) -> ColumnElement[bool]:
    """The condition that a row of *table*, or of an alias of it, is one that *call* deletes."""
    columns, names = list(table.primary_key), call.pk_names(call.table)
    rows = (zip(columns, (row[name] for name in names), strict=True) for row in call.rows)
    return or_(*(and_(*(column == value for column, value in row)) for row in rows))
