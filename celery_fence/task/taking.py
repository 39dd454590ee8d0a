"""How a run takes its lease before the body: from the store, from the execution around it, or as its policies say."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from celery.exceptions import SoftTimeLimitExceeded

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import current, events
from celery_fence.locking.lease import Lease
from celery_fence.locking.null_lease import NullLease
from celery_fence.locking.records import Done
from celery_fence.locking.store import DeliveryEnded, Held
from celery_fence.task import ended_copies, endings, outcomes, repeats
from celery_fence.task.install import runtime, terms_of
from celery_fence.task.interrupt import interrupter
from celery_fence.task.publish import refuse_broadcast

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_fence.locking.store import Claim
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)


def take_lease(run: Run) -> None:
    """
    Give *run* its lease, or raise what ends its message.

    A run within an execution that has the key uses that one's lease. Afterwards
    `run.lease` is a lease, or the null lease where the outage policy is ``run``; or
    `run.completes` says how an earlier copy ended, whose epilogue this run completes.
    """
    key = run.render()
    refuse_broadcast(run.task.app, run.task.name, run.task.request)
    held = current.held_here(key, run.options.settings.place)
    if held is not None:
        run.lease, run.borrowed = held, True
        _claim_under(run, held)
        return
    run.if_held = outcomes.foresee(run)
    try:
        answer = _ask(run, run.claim())
        if isinstance(answer, DeliveryEnded):
            answer = _ended_before(run, answer)
    except StoreUnavailable as error:
        _without_store(run, error)
        return
    if isinstance(answer, Lease) and ended_copies.is_doubtful(run):
        run.release()
        raise ended_copies.doubt(run)
    if isinstance(answer, Held):
        raise outcomes.miss(run, key, answer.holder)
    if isinstance(answer, Done):
        raise repeats.end_as_done(run, repeats.done_before(run.task.app, answer.record))


def _claim_under(run: Run, held: Lease) -> None:
    """Claim the record of an eager run within an execution that has its key: nothing is acquired."""
    if not run.record_key or current.works_on(run.record_key):
        return  # a part of the same work has no end of its own: it isn't done before the run around it returns
    done = run.claim_record(held)
    if done is not None:
        raise repeats.end_as_done(run, repeats.done_before(run.task.app, done.record))


def _ask(run: Run, claim: Claim) -> Lease | Held | DeliveryEnded | Done:
    """
    The store's answer.

    A soft time limit that strikes meanwhile is an outage of the store: nothing has begun yet, so
    nothing is over, and a task that is about to be asked for again hasn't failed.
    """
    try:
        return (
            runtime(run.task.app)
            .locker(run.options.ttl)
            .acquire(
                claim,
                source=run.task,
                terms=terms_of(run.options),
                into=run.took,
                waited=run.notes.misses.waited(run.now),
                on_lost=_on_lost(run, interrupter(run.body)),
            )
        )
    except SoftTimeLimitExceeded as limit:
        run.let_go()
        raise StoreUnavailable(
            f"The soft time limit struck before the lease store had answered for {run.key!r}: the body hasn't "
            "begun. See whether the store is slow, or out of reach; a time limit has to leave time for it "
            '(docs/guarantees.md, "Time limits").'
        ) from limit


def _on_lost(run: Run, interrupt: Callable[[Lease], None]) -> Callable[[Lease], None]:
    """What happens at the moment of loss, in whichever thread notices."""

    def on_lost(lease: Lease) -> None:
        if run.options.lost_policy != "flag":
            interrupt(lease)
        try:
            run.task.on_lease_lost(lease)
        except Exception:  # a user's hook must not end the heartbeat
            logger.exception("on_lease_lost of task %s failed", run.task.name)

    return on_lost


def _ended_before(run: Run, end: DeliveryEnded) -> Lease | Held | DeliveryEnded | Done:
    """A copy of an ended delivery: complete what it left undone, without the body where that is possible."""
    outcome = ended_copies.ended_before(run, end)
    if outcome is not None:
        raise outcome
    if not endings.can_be_completed(run, end.ending):
        return _ask(run, replace(run.claim(), delivery=""))
    run.completes = end.ending
    return end


def _without_store(run: Run, error: StoreUnavailable) -> None:
    if run.options.outage_policy != "run":
        raise outcomes.outage(run, error) from error
    emit = runtime(run.task.app).emit
    run.lease = NullLease(run.task, emit)
    emit(events.RanUnfenced(run.task, run.key, run.task_id, error))
