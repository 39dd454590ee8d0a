"""
Every statement of the process passes here, and those for fenced tables are fenced or refused.

An INSERT, UPDATE or DELETE is recognised by its table, whoever made it: the unit of
work, `session.execute(update(...))`, a bulk operation, Core. What is written as text
can't be recognised; the trigger is for that.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, CursorResult, Delete, Insert, Table, Update
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.lambdas import StatementLambdaElement

from celery_fence.fencing.sqlalchemy import inserts, rows, wheres
from celery_fence.fencing.sqlalchemy.call import CHECK, FENCED, Call, given
from celery_fence.fencing.sqlalchemy.cascades import check_cascades
from celery_fence.fencing.sqlalchemy.guard import guard_on
from celery_fence.fencing.sqlalchemy.refusing import refuse_unfenced
from celery_fence.fencing.sqlalchemy.rule import Rule, rule_of, whole_of


def before_execute(
    connection: Connection, statement: Any, multiparams: Any, params: Any, options: Any
) -> tuple[Any, Any, Any]:
    """Fence a statement for a fenced table, or refuse it."""
    if isinstance(statement, StatementLambdaElement):
        statement = statement._resolved  # noqa: SLF001 - no public name for what lambda_stmt() stands for
    if not isinstance(statement, UpdateBase):
        return statement, multiparams, params
    call = Call.of(connection, statement, multiparams, params, options)
    _check_others(call)
    if isinstance(statement, Delete):
        check_cascades(call)
    rule = rule_of(call.table)
    if rule is None and FENCED in statement.get_execution_options():
        rule = Rule()
    if rule is not None:
        return _fenced(call, rule).as_event()
    if whole_of(call.table) is not None:
        _check_part(call)
    return statement, multiparams, params


def after_execute(
    connection: Connection,
    statement: Any,
    _multi: Any,
    _params: Any,
    _options: Any,
    result: CursorResult[Any],
) -> None:
    """Raise if a fenced statement has left out a row."""
    if isinstance(statement, UpdateBase):
        check = statement.get_execution_options().get(CHECK)
        if check is not None:
            check(connection, result)


def before_cursor_execute(
    connection: Connection, _cursor: Any, _sql: Any, _parameters: Any, context: Any, _many: Any
) -> None:
    """Refuse an UPDATE or DELETE of a fenced table that hides in a WITH."""
    compiled = getattr(context, "compiled", None)
    for expression in getattr(compiled, "ctes", None) or ():
        element = expression.element
        if isinstance(element, Update | Delete | Insert) and _is_fenced(element.table):
            what = f"a WITH that writes to {element.table}"
            instead = "Execute the statement by itself and read what it returns."
            refuse_unfenced(guard_on(connection), element.table, what, instead)


def _fenced(call: Call, rule: Rule) -> Call:
    if isinstance(call.statement, Insert):
        return inserts.fenced(call, rule)
    if call.by_primary_key:
        return rows.fenced(call, rule)
    return wheres.fenced(call, rule)


def _check_others(call: Call) -> None:
    """Refuse what writes to a fenced table under another name, or beside the statement's own."""
    inner = () if isinstance(call.table, Table) else visitors.iterate(call.table)
    hidden = next(filter(_is_fenced, inner), None)
    if hidden is not None:
        what = f"{call.verb} of an alias or a join"
        refuse_unfenced(call.guard, hidden, what, "Name the table itself.")
    for column in given(call.statement):
        table = getattr(column, "table", None)
        if isinstance(table, Table) and table.key != call.table.key and _is_fenced(table):
            what = f"{call.what} that changes {table}, too"
            refuse_unfenced(call.guard, table, what, "Write one statement for each table.")


def _check_part(call: Call) -> None:
    """
    Let through what the unit of work writes to the other tables of a joined hierarchy, and refuse all else.

    The table with the token is written in the same flush, whose failure takes back both.
    """
    whole = whole_of(call.table)
    if whole is None or isinstance(call.statement, Insert):
        return
    names = call.pk_names(call.table)
    if call.by_primary_key and all(
        call.guard.mark_of((whole, tuple(row[name] for name in names))) for row in call.rows
    ):
        return
    what = f"{call.what} without its row of {whole}, where the token is"
    refuse_unfenced(call.guard, whole, what, "Change the objects in a session and flush it.")


def _is_fenced(table: Any) -> bool:
    return rule_of(table) is not None or whole_of(table) is not None
