"""
Stopping a body that lost its lease.

`interruptible` opens the body for it, `interrupter` is what the loss calls. How it is
done depends on the pool (`celery_fence.task.stopping`); what can't be interrupted is told by
`lease.check()`.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from celery_fence.errors import LeaseLost
from celery_fence.task.stopping import Stopper, stopper_here
from celery_fence.task.stopping.threads import Struck

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from celery_fence.locking.lease import Lease

logger = logging.getLogger(__name__)


def is_of_a_stop(error: BaseException) -> bool:
    """
    Whether *error* came up while the body was being stopped, and hides the stop.

    As a rollback does that fails because the stop struck in the middle of a query. What a
    body raises from the loss on purpose (``raise ... from``), and what it says to Celery, is its own word.
    """
    seen: set[int] = set()
    following: BaseException | None = error
    while isinstance(following, Exception) and id(following) not in seen:
        if isinstance(following, Ignore | Reject | Retry | SoftTimeLimitExceeded):
            return False
        seen.add(id(following))
        if isinstance(following.__context__, LeaseLost) and not following.__suppress_context__:
            return True
        following = following.__context__
    return False


class Body:
    """One running body, what can stop it, and the first lease whose loss did."""

    __slots__ = ("lost", "stopper")

    def __init__(self) -> None:
        self.lost: Lease | None = None
        self.stopper: Stopper | None = None


def interruptible(body: Body, *, wanted: bool) -> AbstractContextManager[None]:
    """Run the block so that `interrupter` can stop it, if *wanted* and if anything can stop it here."""
    stopper = stopper_here() if wanted else None
    return nullcontext() if stopper is None else Interruptible(body, stopper)


def interrupter(body: Body) -> Callable[[Lease], None]:
    """What to call, from any thread, when a lease of *body* is lost."""

    def interrupt(lease: Lease) -> None:
        if body.lost is None:
            body.lost = lease
        # After the line above: a body that opens meanwhile sees one of the two.
        stopper = body.stopper
        if stopper is not None:
            stopper.strike(lease)

    return interrupt


class Interruptible(AbstractContextManager[None]):
    """
    The block that may be stopped.

    A strike can still come in the lines that leave the block. The body has ended then,
    and its outcome stands: the strike is dropped here, so that it never meets Celery.
    """

    def __init__(self, body: Body, stopper: Stopper) -> None:
        self._body = body
        self._stopper = stopper

    def __enter__(self) -> None:
        """
        Open the body.

        Raises:
            LeaseLost: a lease was lost between its grant and this line.

        """
        self._body.stopper = self._stopper
        try:
            self._stopper.open()
            lost = self._body.lost
        except BaseException:
            self._close()
            raise
        if lost is not None:
            self._close()
            raise lost.loss()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the body, and let a loss look the same from every pool."""
        self._close()
        self._body.stopper = None  # it knows the greenlet, and the greenlet's frames know the body
        if isinstance(error, Struck) and self._body.lost is not None:
            raise self._body.lost.loss().with_traceback(trace) from None

    def _close(self) -> None:
        try:
            self._stopper.close()
        except LeaseLost:
            logger.debug("A body ended before it could be stopped")
        finally:
            self._stopper.close()  # does nothing if the first one came to its end
