"""UPDATEs that would take a row to another key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy.sql.elements import BindParameter

from celery_fence.errors import LockKeyError, UnfencedWrite
from celery_fence.fencing.sqlalchemy.call import Call, given
from celery_fence.fencing.sqlalchemy.rule import Rule
from celery_fence.fencing.writer import Writer, let_pass

UNKNOWN: Final = "a key that only the database knows"


def check_move(
    call: Call, rule: Rule, writer: Writer | None, was: Sequence[Any], row: Mapping[str, Any]
) -> None:
    """
    Refuse *call* if it would take a row whose key columns *was* to another key; *row* has its parameters.

    Raises:
        UnfencedWrite: it would, and the mode is ``enforce``; elsewhere it is told.

    """
    if writer is None or call.verb != "UPDATE":
        return
    key, other = rule.key_of_row(was), _key_after(call, rule, was, row)
    if other == key:
        return
    if writer.enforces:
        raise moved(call.table, key, other)
    let_pass(replace(writer, token=None), scope=key, what=f"{call.what} that moves a row to {other!r}")


def moved(table: Any, key: str, other: str) -> UnfencedWrite:
    """The error for a row of *table* that would go from *key* to the *other*."""
    return UnfencedWrite(
        f"A row of {table} would move from {key!r} to {other!r}: tokens of two keys can't be compared. "
        "Delete it under the lease of the one and insert it under that of the other."
    )


def _key_after(call: Call, rule: Rule, was: Sequence[Any], row: Mapping[str, Any]) -> str:
    values = dict(zip(rule.columns, was, strict=True))
    written = {getattr(column, "key", column): value for column, value in given(call.statement).items()}
    for name, column in rule.columns.items():
        value = row[column] if column in row else written.get(column, values[name])
        if isinstance(value, BindParameter):
            value = row.get(value.key, value.effective_value)
        values[name] = value
    try:
        return rule.key_of(values)
    except LockKeyError:
        return UNKNOWN  # an SQL expression, or nothing that can be in a key
