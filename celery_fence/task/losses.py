"""
A body that ended because its lease was lost, or because its token was refused as stale.

Releases the lease, and publishes what has to be published before it returns the exception
by which Celery ends the message. The caller raises it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.lease import Lease
from celery_fence.locking.store import Ending, Gone
from celery_fence.task.copies import HOUR, longest_delay
from celery_fence.task.ended_copies import superseded
from celery_fence.task.install import runtime
from celery_fence.task.retries import retry

if TYPE_CHECKING:
    from celery_fence.errors import AlreadyDone, StaleToken
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)

LOST_RETRIES = 5
"""How often a run that lost its lease, or had its token refused, is sent again before it fails."""

ABSURD = 2**53
"""No token is this large: the store's scripts couldn't tell it from the next one."""


def lost(run: Run, error: Exception, *, holds: bool = False) -> Exception:
    """
    What becomes of *run*'s message after its lease was lost and its body stopped with *error*; releases the lease.

    *holds*: it wasn't lost, and the run is sent again whatever the lost policy.
    """
    final = _is_final(run, holds=holds)
    run.release(Ending("failed") if final else None)
    if run.succeeded_by_copy:
        return superseded(run)
    if final:
        if (holds or run.options.lost_policy == "retry") and not run.task.request.is_eager:
            logger.error(
                "Task %s[%s] lost its lease, had its token refused or met its own record %d times; it fails now",
                run.task.name,
                run.task_id,
                LOST_RETRIES,
            )
        run.ended = "failed"
        return error
    delay = min(2.0**run.notes.losses, longest_delay(run) or HOUR)
    notes = run.notes.cleared().lost_again()
    return retry(run, error, delay, notes)


def stale(run: Run, error: StaleToken) -> Exception:
    """
    What becomes of *run*'s message after its body ended with a refused write; releases the lease.

    Mostly another run has taken over, and this one counts as lost. But where the lease store
    confirms that the lease holds, the tokens of the key once ran ahead of its clock: then
    the counter is raised above the token that was seen, and the run is sent again.
    """
    return lost(run, error, holds=_raise_counter(run, error))


def unsure(run: Run, error: AlreadyDone) -> Exception:
    """
    What becomes of *run*'s message after its body met the record that it had completed itself; releases the lease.

    Where that was in the same transaction, this error has undone it; where it was in an
    earlier one, it is committed. The next run finds out which: it does the work, or is answered.
    """
    return lost(run, error, holds=True)


def _is_final(run: Run, *, holds: bool) -> bool:
    again = (holds or run.options.lost_policy == "retry") and not run.task.request.is_eager
    return not again or run.notes.losses >= LOST_RETRIES


def _raise_counter(run: Run, error: StaleToken) -> bool:
    """Whether the lease holds, and the next token of its key is above the one that was seen."""
    lease, seen = run.lease, error.seen
    if not isinstance(lease, Lease) or lease.lost or seen is None:
        return False
    if seen >= ABSURD:
        logger.error(
            "Token %d, seen for %r, can't have been issued: the state was written by hand?", seen, run.key
        )
        return False
    try:
        told = lease.store.raise_counter(lease.claim, lease.token, seen)
    except StoreUnavailable:
        return False
    if isinstance(told, Gone):
        lease.lose(told.reason)
        return False
    runtime(run.task.app).emit(events.CounterRaised(run.task, run.key, lease, run.task_id, seen, error.scope))
    return True
