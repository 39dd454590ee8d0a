"""
A message that comes back: first its state, then its next copy.

Celery stores RETRY after the next copy was published. By then another worker may have
run that copy and stored how it ended, and RETRY would stand over it for ever:

    A publishes the copy ... B runs it, stores SUCCESS ... A stores RETRY

Celery's backends look before they write over a SUCCESS, but not in one step with the
writing, and not at a FAILURE. So it is stored here before the copy is published, and not at
all where the message has an outcome already: another copy has ended it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Retry, SoftTimeLimitExceeded

from celery_fence.task.endings import stores_result
from celery_fence.task.publish import send_again

if TYPE_CHECKING:
    from celery_fence.task.notes import Notes
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)


def retry(run: Run, why: Exception, delay: float, notes: Notes) -> Exception:
    """
    Send *run*'s message again after *delay* seconds, with *notes*; returns what ends this copy as RETRY.

    Raises what `send_again` raises.
    """
    _tell_retry(run, why)
    signature: Any = send_again(run.task, notes, delay=delay)
    # Else Celery stores RETRY once more, now over whatever is there; see `told` for where it doesn't ask the request.
    # Not before: the copy would take it along.
    run.task.request.ignore_result = run.told = True
    outcome: Exception = Retry(exc=why, when=round(delay, 3), is_eager=False, sig=signature)
    return outcome


def has_outcome(run: Run) -> bool:
    """
    Whether something final is stored for the message: another copy of it has ended. One call to the backend.

    A soft time limit that strikes meanwhile ends the call, and is noted: what is decided about the message stands.
    """
    if not stores_result(run):
        return False
    try:
        return run.task.backend.get_state(run.task_id) in states.READY_STATES
    except Exception as error:  # noqa: BLE001 - whatever a backend raises: nobody knows
        logger.warning(
            "The result backend can't say how %s[%s] stands: %s", run.task.name, run.task_id, error
        )
        run.mute = True
        run.out_of_time = run.out_of_time or isinstance(error, SoftTimeLimitExceeded)
        return False


def _tell_retry(run: Run, why: Exception) -> None:
    """Store RETRY, if it can be and nothing final is there: the message goes on either way."""
    if not run.mute:
        run.mute = has_outcome(run) or run.mute
    if run.mute or not stores_result(run):
        return
    try:
        run.task.backend.mark_as_retry(run.task_id, why, request=run.task.request)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises: the message must not be lost for it
        logger.warning("RETRY of %s[%s] couldn't be stored: %s", run.task.name, run.task_id, error)
