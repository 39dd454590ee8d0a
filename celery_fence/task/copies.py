"""A copy of a message whose original runs, or has ended unheard of: it waits, and nothing is written about it."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from celery.exceptions import Ignore, Reject

from celery_fence.locking import events, policies
from celery_fence.locking.policies import Miss, SendLater, decide
from celery_fence.task.install import runtime
from celery_fence.task.publish import send_again
from celery_fence.task.retries import has_outcome
from celery_fence.task.settings import visibility_timeout

if TYPE_CHECKING:
    from celery_fence.locking.store import Holder
    from celery_fence.task.notes import Notes
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)

HOUR = 3600.0


class PutOff(Ignore, Exception):
    """Ends a copy of a running message: another copy was published for later, nothing is stored."""


def waits_for(run: Run, holder: Holder) -> bool:
    """Whether nothing is to be decided about *run*'s message: it runs as *holder*, is to follow it, or has ended."""
    return run.delivery.is_copy_of(holder) or run.delivery.overtook(holder) or ended_unheard_of(run)


def may_be_known_elsewhere(run: Run) -> bool:
    """Whether *run*'s message may run or have ended elsewhere, as far as one can tell without the lease store."""
    return _is_marked_as_copy(run) or has_outcome(run)


def ended_unheard_of(run: Run) -> bool:
    """
    Whether the message is a copy of one that has an outcome, of which the lease store hasn't heard.

    A run lost its lease while the store was out of reach: how it ended can be noted only
    when the store is back, and a copy may ask before. One call to the backend, for copies only.
    """
    return _is_marked_as_copy(run) and has_outcome(run)


def _is_marked_as_copy(run: Run) -> bool:
    return run.delivery.redelivered or run.notes.put_offs > 0


def put_off(run: Run, holder: Holder | None) -> Exception:
    """
    Let a copy of a running message, or a retry that overtook its predecessor, wait.

    Never skipped, dead-lettered or written about: the holder works under the same
    task id. Published again before it is acknowledged: on Redis both copies share
    one delivery tag, so acknowledging this one takes away the broker's only record
    of the running one.
    """
    waits = Miss(
        run.key,
        holder,
        attempt=run.notes.put_offs,
        roll=random.random(),
        longest_delay=longest_delay(run),
    )
    decision = decide(policies.Retry(), waits)
    return come_again(run, decision.delay if isinstance(decision, SendLater) else 1.0, holder)


def come_again(
    run: Run, delay: float, holder: Holder | None = None, *, notes: Notes | None = None
) -> Exception:
    """Publish this copy for later and end it without a trace."""
    delay = min(max(delay, 1.0), longest_delay(run) or HOUR)
    try:
        # Without its expiry: Celery would write REVOKED under the id of the running message.
        send_again(run.task, notes or run.notes.put_off_again(), delay=delay, expires=None)
    except Reject:
        raise
    except Exception:  # acknowledged early: the running original is all there is, and all there has to be
        logger.exception("A copy of the running message %s[%s] is dropped", run.task.name, run.task_id)
    runtime(run.task.app).emit(events.PutOff(run.task, run.key, holder, run.task_id, delay))
    return PutOff(f"This very message holds {run.key!r} or has just ended; put off for {delay:.1f} s.")


def longest_delay(run: Run) -> float | None:
    """
    Half of the broker's visibility timeout where it has one.

    A message that waits for its time in a worker longer than that timeout is
    delivered again and again (Celery's documentation, "Visibility timeout" of Redis).
    """
    timeout = None if run.task.request.is_eager else visibility_timeout(run.task.app)
    return None if timeout is None else timeout / 2
