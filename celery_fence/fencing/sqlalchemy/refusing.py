"""What becomes of a write that no guard can put a condition into."""

from __future__ import annotations

from typing import Any

from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.sqlalchemy.guard import Guard
from celery_fence.fencing.sqlalchemy.rule import Rule, rule_of, whole_of


def refuse_unfenced(guard: Guard, table: Any, what: str, instead: str) -> None:
    """
    Refuse *what* writes to the fenced *table*; in mode ``shadow`` it is told of, in mode ``off`` it isn't.

    Raises:
        UnfencedWrite: in mode ``enforce``; it says what to do *instead*.

    """
    rule = rule_of(table) or rule_of(whole_of(table)) or Rule()
    match guard.mode_of(rule):
        case "enforce":
            raise UnfencedWrite(f"A guard can't fence {what}: nothing was written. {instead}")
        case "shadow":
            guard.let_pass(rule, str(table), what)
