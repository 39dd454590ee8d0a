"""One statement on its way to the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

from sqlalchemy import ColumnElement, Connection, CursorResult, Delete, Select, Table, Update
from sqlalchemy.sql import operators
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList

from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.sqlalchemy.autocommit import autocommits
from celery_fence.fencing.sqlalchemy.guard import Guard, guard_on
from celery_fence.fencing.writer import Writer

CHECK: Final = "celery_fence.check"
"""Under this name a statement's execution options keep what is to be checked once it is executed."""

TRANSLATED: Final = "schema_translate_map"
"""SQLAlchemy's own option: which schema a statement's tables are taken from."""

FENCED: Final = "celery_fence.fenced"
"""Under this name the execution options of a fenced Core statement keep its writer."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """What a fenced Core statement remembers: its *writer*, the *added* condition, and what an upsert is *on*."""

    writer: Writer
    added: ColumnElement[bool] | None = None
    on: tuple[str, ...] = ()


class Check(Protocol):
    """What is asked after a statement was executed."""

    def __call__(self, connection: Connection, result: CursorResult[Any]) -> None:
        """Raise if what was written isn't what was to be written."""


@dataclass(frozen=True, slots=True)
class Call:
    """*statement* for *table*, once for each of *rows*, with its parameters."""

    connection: Connection
    statement: Any
    table: Any
    rows: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    """What every other statement about the same rows has to be executed with, too."""

    @classmethod
    def of(
        cls,
        connection: Connection,
        statement: UpdateBase,
        multiparams: Any,
        params: Any,
        options: Mapping[str, Any],
    ) -> Self:
        """The call that an event of SQLAlchemy's tells of."""
        rows = list(multiparams) or ([params] if params else [])
        table: Any = statement.table
        kept = {TRANSLATED: options[TRANSLATED]} if options.get(TRANSLATED) else {}
        return cls(connection, statement, _plain(table), rows, kept)

    def ask(self, asked: Select[Any], row: Mapping[str, Any] | None = None) -> CursorResult[Any]:
        """What *asked*, with the parameters of *row*, answers about the tables that the call is for."""
        return self.connection.execute(asked, dict(row or {}), execution_options=self.options)

    @property
    def guard(self) -> Guard:
        """The guard of the session that makes the call."""
        return guard_on(self.connection)

    @property
    def verb(self) -> str:
        """``UPDATE``, ``DELETE`` or ``INSERT``."""
        if isinstance(self.statement, Update):
            return "UPDATE"
        return "DELETE" if isinstance(self.statement, Delete) else "INSERT"

    @property
    def what(self) -> str:
        """What is attempted, as people read it."""
        return f"{self.verb} {self.table}"

    def check_transaction(self) -> None:
        """Raise `UnfencedWrite` in autocommit mode: what was written before the refusal couldn't be taken back."""
        if autocommits(self.connection):
            raise UnfencedWrite(
                f"A guard can't fence {self.what} on a connection in autocommit mode: nothing was written. Give it "
                "another isolation_level, and commit."
            )

    def as_event(self) -> tuple[Any, Any, Any]:
        """The call as SQLAlchemy's event wants it back."""
        if len(self.rows) == 1:
            return self.statement, [], dict(self.rows[0])
        return self.statement, [dict(row) for row in self.rows], {}

    def pk_names(self, table: Table) -> list[str]:
        """The parameters in which the unit of work gives the primary key of a row of *table*."""
        columns: list[Any] = list(table.primary_key.columns)
        if isinstance(self.statement, Delete):
            return [column.key for column in columns]
        return [column._label for column in columns]  # noqa: SLF001 - the name that SQLAlchemy's unit of work gives it

    @property
    def by_primary_key(self) -> bool:
        """
        Whether this is a statement of the unit of work: one row, by its primary key, for each set of parameters.

        A WHERE that compares anything else, or with a value of its own, isn't: it may
        match other rows, or rightly none.
        """
        names = dict(zip(self.table.primary_key.columns, self.pk_names(self.table), strict=True))
        given = dict(_equalities(self.statement._where_criteria))  # noqa: SLF001 - no public name
        return (
            bool(self.rows and names)
            and None not in given
            and all(given.get(column) == name for column, name in names.items())
            and all(name in row for row in self.rows for name in given.values())
        )


def given(statement: Any) -> dict[Any, Any]:
    """What stands in an INSERT or UPDATE itself: the columns, or their names, with their values."""
    # SQLAlchemy 2.0 keeps ordered_values() apart.
    return {
        **(getattr(statement, "_values", None) or {}),
        **dict(getattr(statement, "_ordered_values", None) or ()),
    }


def is_ordered(statement: Any) -> bool:
    """Whether it was made with ordered_values(), which takes no values besides; 2.0 and 2.1 keep that differently."""
    return any(getattr(statement, name, None) for name in ("_maintain_values_ordering", "_ordered_values"))


def _equalities(criteria: Iterable[Any]) -> Iterator[tuple[Any, str]]:
    """The columns that must equal a parameter, with its name; a None for any other criterion."""
    for each in criteria:
        if isinstance(each, BooleanClauseList) and each.operator is operators.and_:
            yield from _equalities(each.clauses)
        elif (
            isinstance(each, BinaryExpression)
            and each.operator is operators.eq
            and isinstance(each.right, BindParameter)
        ):
            yield each.left, each.right.key
        else:
            yield None, ""


def _plain(table: Any) -> Any:
    """The table itself, not the copy with annotations that the ORM puts in its place."""
    metadata = getattr(table, "metadata", None)
    return table if metadata is None else metadata.tables.get(table.key, table)
