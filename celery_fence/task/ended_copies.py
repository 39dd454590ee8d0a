"""
What becomes of a copy of a delivery that has ended, and of a run whose message a copy took over.

See `celery_fence.task.endings` for the table.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from celery.exceptions import Ignore

from celery_fence.locking import events
from celery_fence.locking.store import Gone, Holder
from celery_fence.task.copies import come_again, ended_unheard_of, put_off
from celery_fence.task.endings import Finished
from celery_fence.task.install import runtime
from celery_fence.task.outcomes import decided
from celery_fence.task.retries import has_outcome

if TYPE_CHECKING:
    from celery_fence.locking.store import DeliveryEnded
    from celery_fence.task.run import Run

DOUBT = 2.0
"""Seconds, at least, for which a copy waits for who may owe the store the end of its message."""


class Superseded(Ignore, Exception):
    """Ends a run whose message a copy took over: the result is the copy's business, nothing is stored."""


def superseded(run: Run) -> Exception:
    """
    End a run whose message a copy holds now, or has ended: the result is the copy's business, nothing is stored.

    While the copy runs, the message is published for later once more: on Redis this
    acknowledgement takes away the broker's record of the copy too.
    """
    run.ended = ""  # what is noted is the copy's end
    answer = run.answer
    if isinstance(answer, Gone) and not answer.ended and answer.holder is not None:
        return put_off(run, answer.holder)
    return Superseded(f"A copy of this message has ended it while {run.key!r} was lost.")


def ended_before(run: Run, end: DeliveryEnded) -> Exception | None:
    """
    What becomes of a copy of a delivery that has ended; None where the body runs after all.

    See `celery_fence.task.endings` for the table.
    """
    if end.noted:
        return _finished(run, end)
    if end.age < run.options.ttl:
        return come_again(run, run.options.ttl - end.age)
    match end.ending.how:
        case "returned":
            return None
        case "failed" if not _failure_is_complete(run):
            return None
        case "skipped" | "dead_lettered" | "raised":
            return _act_again(run, end)
        case _:
            run.ended = end.ending.how  # what followed was published before: only the note was missing
            return _finished(run, end)


def _act_again(run: Run, end: DeliveryEnded) -> Exception:
    """Carry out once more the decision of a process that died before it had, or before that was noted."""
    if end.ending.how != "skipped" and _failure_is_complete(run):
        run.ended = end.ending.how
        return _finished(run, end)
    run.subject = run.key
    return decided(run, run.key, end.holder or Holder(run.key, owner="", token=0, ttl_left=None))


def _failure_is_complete(run: Run) -> bool:
    """Whether nothing is left of a failure but its note: who had to write that may be frozen, and wake up later."""
    request = run.task.request
    return not (request.errbacks or request.chord) and has_outcome(run)


def _finished(run: Run, end: DeliveryEnded) -> Exception:
    """End a copy without a trace in the result, but not without a word."""
    runtime(run.task.app).emit(events.CopyEnded(run.task, run.key, run.task_id, end.ending.how, end.age))
    return Finished(f"This delivery has ended before ({end.ending.how}).")


def is_doubtful(run: Run) -> bool:
    """
    Whether *run*, which has just been granted its key, may be a copy of a message that has ended.

    It has an outcome, of which the lease store knows nothing:

        the original   ends ... the store is away ... its lease expires        the store is told
        the copy                                          the store is back ... granted

    Whoever owes the store that end tells it within a second of its return. The copy waits for that once. If the
    store knows nothing of it then, the outcome is another delivery's, or nobody is left to tell: the body runs.
    A record (*record_key*) is left alone: a grant that is given back would take it from who is to write it.
    """
    return not run.notes.doubts and not run.record_key and ended_unheard_of(run)


def doubt(run: Run) -> Exception:
    """What becomes of a doubtful copy, whose lease has been given back."""
    return come_again(run, DOUBT * (1 + random.random()), notes=run.notes.doubted_again())
