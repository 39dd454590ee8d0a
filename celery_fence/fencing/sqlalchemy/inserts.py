"""
INSERT into fenced tables.

A new row overwrites nothing, so anybody may insert it. Where its key is leased here,
it is stamped, so that an older holder of the key can't change it afterwards. An INSERT
that turns into an UPDATE must be a `fenced_insert`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Insert

from celery_fence.errors import LockKeyError, UnfencedWrite
from celery_fence.fencing.sqlalchemy import upserts
from celery_fence.fencing.sqlalchemy.call import FENCED, Call, Fenced
from celery_fence.fencing.sqlalchemy.rule import OWNER, TOKEN, Rule
from celery_fence.fencing.sqlalchemy.upserts import given
from celery_fence.fencing.writer import Writer


def fenced(call: Call, rule: Rule) -> Call:
    """*call* with the stamps of the rows whose key is leased here, or refused."""
    writers = call.guard.writers(rule)
    mode = call.guard.mode_of(rule)
    statement: Insert = call.statement
    made = statement.get_execution_options().get(FENCED)
    if isinstance(made, Fenced):
        return upserts.fenced(call, rule, made.writer, made.on)
    if mode == "off":
        return call
    if mode == "enforce" and _overwrites(statement):
        raise UnfencedWrite(
            f"A guard can't fence {call.what} that changes a row which is there already: nothing was written. "
            "Use fenced_insert()."
        )
    if rule.template is None or not any(writer.compares for writer in writers) or _is_stamped(call):
        return call
    if statement.select is not None or statement._multi_values:  # noqa: SLF001 - no public name
        return _unstamped(call, mode)
    rows = call.rows or [{}]
    stamps = [_stamp(call, rule, writers, {**given(statement), **row}) for row in rows]
    if not any(stamp[TOKEN] for stamp in stamps):
        return call
    return replace(call, rows=[{**row, **stamp} for row, stamp in zip(rows, stamps, strict=True)])


def _overwrites(statement: Insert) -> bool:
    """Whether it is an upsert of some dialect's, or SQLite's and MySQL's REPLACE."""
    clause = statement._post_values_clause  # noqa: SLF001 - no public name
    prefixes = " ".join(str(prefix) for prefix, _ in statement._prefixes).upper()  # noqa: SLF001
    return "REPLACE" in prefixes or (clause is not None and "nothing" not in type(clause).__name__.lower())


def _is_stamped(call: Call) -> bool:
    """The unit of work has done so, or the user."""
    return TOKEN in given(call.statement) or any(TOKEN in row for row in call.rows)


def _stamp(call: Call, rule: Rule, writers: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Token and owner for a row with these *values*; those of a row that nobody has written where nobody may."""
    nothing = {TOKEN: 0, OWNER: None}
    try:
        scope = rule.key_of({name: values.get(column) for name, column in rule.columns.items()})
    except LockKeyError:
        return nothing  # its key comes from the database
    for writer in writers:
        if writer.compares and writer.key == scope:
            known: Writer | None = call.guard.checked(writer, scope, call.what)
            return {TOKEN: known.token, OWNER: known.owner} if known is not None else nothing
    return nothing


def _unstamped(call: Call, mode: str) -> Call:
    if mode != "enforce":
        return call
    raise UnfencedWrite(
        f"A guard can't stamp the rows of {call.what} that are in the statement itself or come from a SELECT: nothing "
        "was written. Pass the rows as the second argument of execute()."
    )
