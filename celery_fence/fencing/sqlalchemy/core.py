"""Statements of Core that carry the fence in themselves, and what they need to raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Delete, Insert, Table, Update, delete, insert, update

from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.attempt import Attempt
from celery_fence.fencing.sqlalchemy.call import FENCED, Fenced
from celery_fence.fencing.sqlalchemy.condition import condition
from celery_fence.fencing.sqlalchemy.hooks import install
from celery_fence.fencing.sqlalchemy.rule import OWNER, TOKEN, Rule, rule_of, rule_over
from celery_fence.fencing.sqlalchemy.upsert import Upsert
from celery_fence.fencing.writer import Mode, Shown, Writer, writer_for, writer_of


def fenced_update(
    table: Any, lease: Shown | None = None, *, scope: str | None = None, mode: Mode | None = None
) -> Update:
    """
    An UPDATE of *table* (or a mapped class) for the rows that *lease* may write, with its stamp.

    Add `where` and `values` as to any other. *lease* is the one that the code is under,
    unless given; *scope* is the key that the rows belong to, and picks the lease on it.
    Without one nothing says which key they belong to, unless the table has a fence key:
    the token of any lease is compared, also one of another key. Executed, it raises
    `StaleToken` if a row it was meant for has a newer token; where it matches nothing, it
    changes nothing, as ever.

    Raises:
        ScopeMismatch, UnfencedWrite, ConfigError: the lease isn't one for such a statement.

    """
    rows, writer = _target("fenced_update", table, lease, scope, mode)
    if not (writer.compares and writer.enforces):
        return update(table).execution_options(**{FENCED: Fenced(writer)})
    added = condition(rows, writer)
    stamp = {rows.c[TOKEN]: writer.token, rows.c[OWNER]: writer.owner}
    return update(table).where(added).values(stamp).execution_options(**{FENCED: Fenced(writer, added)})


def fenced_delete(
    table: Any, lease: Shown | None = None, *, scope: str | None = None, mode: Mode | None = None
) -> Delete:
    """A DELETE of the rows of *table* that *lease* may write; all else as in `fenced_update`."""
    rows, writer = _target("fenced_delete", table, lease, scope, mode)
    if not (writer.compares and writer.enforces):
        return delete(table).execution_options(**{FENCED: Fenced(writer)})
    added = condition(rows, writer)
    return delete(table).where(added).execution_options(**{FENCED: Fenced(writer, added)})


def fenced_insert(
    table: Any,
    lease: Shown | None = None,
    *,
    on: Sequence[str] | None = None,
    scope: str | None = None,
    mode: Mode | None = None,
) -> Insert:
    """
    An INSERT that updates a row that is there already, if *lease* may write it (an upsert).

    *on* names the columns that make two rows the same, the primary key unless given; in
    PostgreSQL and SQLite they have a unique index. The columns given with `values`, or
    as parameters, are written; those of *on* and of the fence key stay. Executed, it
    raises `StaleToken` if the row has a newer token. All else as in `fenced_update`.
    """
    rows, writer = _target("fenced_insert", table, lease, scope, mode)
    rule = rule_of(rows) or Rule()
    names = tuple(on) if on is not None else tuple(column.key for column in rows.primary_key.columns)
    statement = insert(rows).execution_options(**{FENCED: Fenced(writer, on=names)})
    stamp = {TOKEN: writer.token or 0, OWNER: writer.owner}
    statement = statement.values(stamp)
    others = [column for column in rule.columns.values() if column not in names]
    statement._post_values_clause = Upsert(names, others, comparing=writer.compares and writer.enforces)  # noqa: SLF001 - where each dialect's own upsert puts it
    return statement


def execute_fenced(connection: Any, statement: Any, parameters: Any = None) -> Any:
    """
    Execute a fenced *statement* on a connection or session, and raise if it was refused.

    Answers what `execute` answers: the result, or what is to be awaited. Other
    statements are refused, so that an unfenced one can't slip in.

    Raises:
        StaleToken: a newer token has written a row that was meant; roll back.
        ScopeMismatch: a row that was meant is of another key.
        UnfencedWrite: the statement isn't a fenced one.

    """
    options: dict[str, Any] = getattr(statement, "get_execution_options", dict)()
    if not isinstance(options.get(FENCED), Fenced):
        raise UnfencedWrite(
            "execute_fenced() takes a statement from fenced_update(), fenced_delete() or fenced_insert()."
        )
    return connection.execute(statement, parameters)


def _target(
    what: str, table: Any, lease: Shown | None, scope: str | None, mode: Mode | None
) -> tuple[Table, Writer]:
    """The table that the rows are in, and who writes them; an error names *what* was called."""
    install()
    rows: Table = getattr(table, "__table__", table)
    rule = rule_of(rows) or rule_over(rows, None, {}, None)
    known = mode or rule.mode
    attempt = Attempt(f"{what}({rows})", f"{what}({rows}, lease)")
    if scope is None:
        return rows, writer_of(lease, mode=known, attempt=attempt)
    return rows, writer_for(scope, lease, mode=known, attempt=attempt)
