"""
Where SQLAlchemy tells of what it does: sessions of their transactions, connections of their statements.

Installed once in a process, when the first table is fenced, and for all sessions
and engines, sync and async: so no session and no statement can be forgotten.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

from celery_fence.fencing.sqlalchemy import statements
from celery_fence.fencing.sqlalchemy.guard import GUARD, guard_of


def install() -> None:
    """Listen to every session and engine of this process. Doing it again changes nothing."""
    for target, name, hook, options in (
        (Session, "after_transaction_create", _began, {}),
        (Session, "after_begin", _connected, {}),
        (Session, "before_flush", _before_flush, {}),
        (Session, "after_flush", _flushed, {}),
        (Session, "after_soft_rollback", _rolled_back, {}),
        (Session, "after_transaction_end", _ended, {}),
        (Engine, "before_execute", statements.before_execute, {"retval": True}),
        (Engine, "before_cursor_execute", statements.before_cursor_execute, {}),
        (Engine, "after_execute", statements.after_execute, {}),
    ):
        if not event.contains(target, name, hook):
            event.listen(target, name, hook, **options)


def _began(session: Session, transaction: Any) -> None:
    if transaction.parent is None:
        guard_of(session).begin()


def _connected(session: Session, _transaction: Any, connection: Connection) -> None:
    connection.execution_options(**{GUARD: guard_of(session)})


def _before_flush(session: Session, _context: Any, _instances: Any) -> None:
    guard = guard_of(session)
    guard.begin_flush()
    guard.check_left_over()


def _flushed(session: Session, _context: Any) -> None:
    guard_of(session).end_flush()


def _rolled_back(session: Session, transaction: Any) -> None:
    guard_of(session).undo(transaction)


def _ended(session: Session, transaction: Any) -> None:
    if transaction.parent is None:
        guard_of(session).end()
