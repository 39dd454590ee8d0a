"""
What the database itself does to fenced rows when another row is deleted.

A foreign key with ON DELETE CASCADE or SET NULL lets the database delete or change rows,
and no guard sees that. So a DELETE is refused while there are fenced rows that it would
reach. The unit of work deletes children by itself, fenced, before their parent, unless it
is told not to (``passive_deletes``); then nothing is left, and the DELETE goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, ForeignKeyConstraint, FromClause, Table, and_, not_, or_, select

from celery_fence.fencing.sqlalchemy.call import Call
from celery_fence.fencing.sqlalchemy.refusing import refuse_unfenced
from celery_fence.fencing.sqlalchemy.rule import Rule, rule_of, whole_of

REACHING: Final = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})
"""What a foreign key says where the database is to change the rows that have it."""

Path: TypeAlias = tuple[ForeignKeyConstraint, ...]


def check_cascades(call: Call) -> None:
    """
    Refuse a DELETE that would reach fenced rows: one SELECT for each foreign key that reaches some.

    Raises:
        UnfencedWrite: there are such rows, and their mode is ``enforce``.

    """
    for path in _reaching(call.table):
        key = path[-1]
        rule = rule_of(key.table) or rule_of(whole_of(key.table)) or Rule()
        if call.guard.mode_of(rule) == "off" or not _is_any_left(call, path):
            continue
        what = f"{call.what}, whereupon the database changes {key.table} by ON DELETE {key.ondelete}"
        instead = "Delete or change those rows first, or let the session do it (without passive_deletes)."
        refuse_unfenced(call.guard, key.table, what, instead)


def _reaching(table: Any, path: Path = ()) -> Iterator[Path]:
    """The foreign keys, one after the other, by which the database goes on from a row of *table* to fenced rows."""
    for other in table.metadata.tables.values() if isinstance(table, Table) else ():
        for key in other.foreign_key_constraints:
            does = (key.ondelete or "").upper()
            if key.referred_table is not table or does not in REACHING or key in path:
                continue
            if rule_of(other) is not None or whole_of(other) is not None:
                yield (*path, key)
            if does == "CASCADE":
                yield from _reaching(other, (*path, key))


def _is_any_left(call: Call, path: Path) -> bool:
    """Whether rows at the end of *path* depend on rows that *call* deletes, and aren't deleted by it."""
    key, parent = path[-1], call.table
    if len(path) == 1 and whole_of(key.table) is call.table:
        return False  # the rest of the very row
    points: list[ColumnElement[bool]] = []
    child = parent
    for step in path:
        child = step.table.alias()
        points += [child.c[element.parent.key] == parent.c[element.column.key] for element in step.elements]
        parent = child
    asked = select(*child.primary_key).where(*points).limit(1)
    if not call.by_primary_key:
        asked = asked.where(*call.statement._where_criteria)  # noqa: SLF001 - no public name
        return any(call.ask(asked, row).first() for row in call.rows or [{}])
    asked = asked.where(_those(call, call.table))
    if path[-1].table is call.table:
        asked = asked.where(not_(_those(call, child)))
    return call.ask(asked).first() is not None


def _those(call: Call, table: FromClause) -> ColumnElement[bool]:
    """The condition that a row of *table*, or of an alias of it, is one that *call* deletes."""
    columns, names = list(table.primary_key), call.pk_names(call.table)
    rows = (zip(columns, (row[name] for name in names), strict=True) for row in call.rows)
    return or_(*(and_(*(column == value for column, value in row)) for row in rows))
