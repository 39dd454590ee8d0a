"""
The loss of a lease, and the telling of it.

Whoever notices a loss tells of it: the code under the lease, the heartbeat, a renewer. Any of them
may be ended from outside on the way (a soft time limit, an exception set into a thread, a greenlet
that is killed), and then somebody else has to go on, or the run would never be asked to stop:

    body       check(): over. Noted as lost, told to the observers - struck
    heartbeat  its next beat: lost, not all is told, nobody is at it. Goes on where the body was struck

So what is left to be told is written down until it is told, and a teller lives in the block of a
lock of its own, which is open as soon as it is gone, as in `celery_fence.locking.duty`. Nobody
waits for such a lock: a hook may take its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from celery_fence.errors import LeaseLost
from celery_fence.locking.native import new_lock

if TYPE_CHECKING:
    from celery_fence.locking.native import Lock

REASONS = {
    "taken": "another owner holds the key now",
    "superseded": "a newer token has been issued for the key",
    "force_released": "an operator released it",
    "expired": "it couldn't be renewed in time",
    "max_hold": "it was held for longer than lock_max_hold",
    "released": "it has been released already",
}


class Loss:
    """
    Why a lease is lost, and the *steps* that tell of it, in their order.

    Each step is called once, and once more where the call was struck.
    """

    __slots__ = ("_left", "_tellers", "reason")

    def __init__(self, reason: str, steps: Iterable[Callable[[], object]]) -> None:
        self.reason = reason
        self._left = list(steps)
        self._tellers: dict[int, Lock] = {}

    @property
    def told(self) -> bool:
        """Whether nothing is left to be told."""
        return not self._left

    def tell(self) -> None:
        """Tell what is left, unless somebody is at it; returns at once then."""
        mine = new_lock()
        with mine:
            if self._is_for(mine):
                self._go_on()

    def _is_for(self, mine: Lock) -> bool:
        """Whether it falls to who has *mine*: nobody tells, and nobody else begins in the same moment."""
        number = len(self._tellers)
        if number and self._tellers[number - 1].locked():
            return False
        return self._tellers.setdefault(number, mine) is mine

    def _go_on(self) -> None:
        while self._left:
            self._left[0]()
            del self._left[0]


def loss_error(key: str, token: int, reason: str) -> LeaseLost:
    """The error that says why the lease on *key* is over."""
    why = REASONS.get(reason, reason)
    return LeaseLost(
        f"The lease on {key!r} (token {token}) is over: {why}. Stop; write nothing more for this key.",
        key=key,
        token=token,
        reason=reason,
    )
