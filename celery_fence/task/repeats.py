"""Work that was done before: what its record says, and how a message ends that asks for it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.exceptions import KombuError

from celery_fence.errors import AlreadyDone
from celery_fence.locking import events
from celery_fence.task import endings
from celery_fence.task.install import runtime
from celery_fence.task.skip import answer

if TYPE_CHECKING:
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.null_lease import NullLease
    from celery_fence.locking.records import Record
    from celery_fence.task.run import Run


def done_before(app: Any, record: Record) -> AlreadyDone:
    """What *record* says of work that isn't to be done again, with its result if that is kept and can be read."""
    facts = record.facts
    who = f"{facts.task_name}[{facts.task_id}]" if facts.task_id else facts.task_name or "a run"
    said = f"The work of {record.key!r} was done before, by {who}, and is not done again"
    if record.value is None:
        why = f"it was larger than {endings.LARGEST_RESULT} bytes, or couldn't be encoded"
        return AlreadyDone(
            f"{said}. Its result wasn't kept: {why}. Look for it where that run left it; let the task return something "
            "small, such as an id.",
            record=record.key,
        )
    try:
        result = endings.remembered_value(app, record.value)
    except (KombuError, ValueError, LookupError) as error:
        return AlreadyDone(f"{said}. Its result can't be read: {error}", record=record.key)
    return AlreadyDone(f"{said}.", record=record.key, has_result=True, result=result)


def is_of_this_run(done: AlreadyDone, lease: Lease | NullLease | None) -> bool:
    """Whether it was this very run, under *lease*, that has done the work: then nobody knows if it was committed."""
    return lease is not None and done.token is not None and done.token == lease.token


def end_as_done(run: Run, done: AlreadyDone) -> Exception:
    """What becomes of a message whose work was done before: it ends with that work's result, without running."""
    if not done.has_result and endings.is_awaited(run):
        run.ended = "raised"
        return done
    skipped = answer(run, done.result, f"already_done: {done.record}")
    # The record remembers it, as long as the epilogue isn't noted.
    run.ended, run.remembered = "skipped", True
    runtime(run.task.app).emit(
        events.Skipped(run.task, run.key, None, run.task_id, done.result, "already_done")
    )
    return skipped
