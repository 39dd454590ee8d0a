"""
Noting that Celery is done with a run: its result is stored, what follows is sent.

Celery tells by its signals, each of which comes after the step it is named for:
`task_success` after the result and the chord part, `task_failure` and `task_retry` after
theirs. For a run that was ignored or rejected there is nothing to store. A result
backend that fails sends none of them, so the epilogue isn't noted and a copy completes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.signals import (
    task_failure,
    task_postrun,
    task_retry,
    task_success,
    worker_process_shutdown,
    worker_shutdown,
)

from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.store import Note
from celery_fence.task.install import runtime
from celery_fence.task.run import release_what_is_left, run_of

if TYPE_CHECKING:
    from celery_fence.task.run import Run

FLUSH = 2.0
"""Seconds that a process waits at its end for notes that are still under way."""


def connect() -> None:
    """Connect to Celery's signals, once for the process."""
    for signal in (task_success, task_failure, task_retry):
        signal.connect(_outcome_stored, weak=False, dispatch_uid="celery_fence.outcome")
    task_postrun.connect(_run_is_over, weak=False, dispatch_uid="celery_fence.over")
    for signal in (worker_process_shutdown, worker_shutdown):
        signal.connect(_flush, weak=False, dispatch_uid="celery_fence.flush")


def _outcome_stored(sender: Any = None, **_: Any) -> None:
    run = _run(sender)
    if run is not None:
        run.outcome_stored = True


def _run_is_over(sender: Any = None, state: str | None = None, **_: Any) -> None:
    run = _run(sender)
    if run is None:
        return
    release_what_is_left(run)
    if run.identity and run.ended and _is_complete(run, state):
        _note(run)


def _is_complete(run: Run, state: str | None) -> bool:
    """A rejected message is over only if the body rejected it for good: one that goes back is to run again."""
    if state == "REJECTED":
        return run.ended == "rejected"
    return run.outcome_stored or state == "IGNORED"


def _note(run: Run) -> None:
    """In the background where the end is remembered already, or owed; at once where it has to be remembered now."""
    note = Note(run.key, run.identity, run.ended, run.options.settings.done_retention)
    locker = runtime(run.task.app).locker(run.options.ttl)
    if run.remembered or run.owes:
        locker.note(note)
    else:
        locker.note_now(note)


def _run(sender: Any) -> Run | None:
    request = getattr(sender, "request", None)
    return run_of(request) if request is not None else None


def _flush(**_: Any) -> None:
    process_heartbeat().flush(FLUSH)
