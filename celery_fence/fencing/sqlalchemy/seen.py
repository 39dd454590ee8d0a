"""What the rows of a fenced table show: their tokens, owners and keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Connection, Select, and_, or_, select

from celery_fence.fencing.sqlalchemy.rule import OWNER, TOKEN, Rule

MOST_AT_ONCE: Final = 500
"""Rows that are asked for in one SELECT."""

Lock = Literal["current", "share", "update"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A row as it is in the database: who wrote it last, and the values that make its key."""

    token: int
    owner: str | None
    values: tuple[Any, ...]

    def key(self, rule: Rule) -> str:
        """The key that the row belongs to, by *rule*."""
        return rule.key_of_row(self.values)


def rows_seen(
    connection: Connection,
    table: Any,
    rule: Rule,
    names: Sequence[str],
    wanted: Iterable[tuple[Any, ...]],
    *,
    lock: Lock,
    options: Mapping[str, Any] | None = None,
) -> dict[tuple[Any, ...], Seen]:
    """Those of the *wanted* rows that exist, by their values in the columns *names*: one SELECT for 500 of them."""
    columns = [table.c[name] for name in names]
    found: dict[tuple[Any, ...], Seen] = {}
    for some in _in_lots(list(dict.fromkeys(wanted))):
        those = or_(*(_equal(columns, values) for values in some))
        asked = select(*columns, table.c[TOKEN], table.c[OWNER], *rule.key_columns(table)).where(those)
        for row in connection.execute(locked(connection, asked, lock), execution_options=options or {}):
            pk, (token, owner, *values) = tuple(row[: len(columns)]), row[len(columns) :]
            found[pk] = Seen(token, owner, tuple(values))
    return found


def locked(connection: Connection, asked: Select[Any], lock: Lock) -> Select[Any]:
    """
    *asked* so that it sees what an UPDATE would see.

    In MySQL's REPEATABLE READ a plain SELECT shows an old snapshot, while an UPDATE
    compares with the newest row; so what asks for ``current`` rows before that UPDATE
    locks them as it will. Elsewhere both see the same, and a lock could only fail.
    """
    if lock == "update":
        return asked.with_for_update()
    mysql = connection.dialect.name in {"mysql", "mariadb"}
    return asked.with_for_update(read=lock == "share") if mysql else asked


def _equal(columns: Sequence[Any], values: Sequence[Any]) -> ColumnElement[bool]:
    return and_(*(column == value for column, value in zip(columns, values, strict=True)))


def _in_lots(wanted: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    for start in range(0, len(wanted), MOST_AT_ONCE):
        yield wanted[start : start + MOST_AT_ONCE]
