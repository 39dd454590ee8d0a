"""
What dead pool processes left, and the thread of the worker's main process that frees it.

Leases are released by owner, so a reused process id or a lease that meanwhile belongs to
somebody else can't be hit, and a release bears repeating: what is left stays written down
until the store has answered, and the thread may be ended from outside in any instant
(`celery_fence.locking.duty`). Whoever tells of a process sees that there is one that lives.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_fence.errors import LockKeyError, StoreUnavailable
from celery_fence.locking.duty import Duty
from celery_fence.locking.native import Wakeable, new_lock, pause
from celery_fence.locking.store import Claim, Released

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.store import Store
    from celery_fence.task.deaths import Accepted

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Left:
    """What a dead process left: release it, at latest by the time its leases end by themselves."""

    run: Accepted
    pid: int
    until: float


class Remains:
    """Frees what is brought to it, again and again until the store answers or the TTL is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = new_lock()
        self._bell = Wakeable()
        self._left: list[Left] = []
        self._pause = FIRST_PAUSE
        self._duty = Duty(self._turn, self._take_back, self._complain)

    def bring(self, left: Left) -> None:
        """Have *left* freed. Returns at once; nothing is lost where the machine has no thread to spare."""
        with self._lock:
            self._left.append(left)
        self.mend()
        self._bell.ring()

    def mend(self) -> None:
        """See that a thread is on duty while there is something to free."""
        try:
            with self._lock:
                if self._left:
                    self._duty.keep()
        except RuntimeError as error:
            logger.warning(
                "The leases of %d dead pool processes can't be released yet: %s", len(self._left), error
            )

    def finish(self, seconds: float) -> None:
        """Wait until everything is freed, for at most *seconds*: the worker is about to end."""
        end = time.monotonic() + seconds
        while self._left and time.monotonic() < end:
            self.mend()
            pause(0.01)

    # --- in the thread on duty -----------------------------------------------------------

    def _turn(self) -> None:
        """Free what there is, then wait for the next try or for more; the last turn leaves nothing."""
        for left in tuple(self._left):
            if self._is_done_with(left):
                self._drop(left)
        if self._ends():
            return
        more = self._bell.wait(self._pause)
        self._pause = FIRST_PAUSE if more else min(2 * self._pause, LONGEST_PAUSE)

    def _is_done_with(self, left: Left) -> bool:
        """Whether *left* is free, or there is no more to be done about it."""
        try:
            release_all(left)
        except StoreUnavailable as error:
            if self._clock() < left.until:
                return False
            logger.warning(
                "The leases of task %s stayed until their TTL ended after pool process %d died: %s",
                *(left.run.task, left.pid, error),
            )
        except Exception:
            logger.exception(
                "The leases of task %s stay until their TTL ends: pool process %d died, and releasing them failed",
                *(left.run.task, left.pid),
            )
        return True

    def _drop(self, left: Left) -> None:
        with self._lock:
            self._left.remove(left)

    def _ends(self) -> bool:
        with self._lock:
            if not self._left:
                self._pause = FIRST_PAUSE
                self._duty.end()
            return not self._left

    def _take_back(self) -> None:
        """Nothing is taken before it is done."""

    def _complain(self, error: BaseException) -> None:
        logger.error("Releasing what dead pool processes left stumbled and goes on", exc_info=error)


def release_all(left: Left) -> None:
    """
    Free the run's own lease first, then those of the `hold` blocks inside it.

    The first is one call, whatever the store holds. The others are found among all
    leases by their owner, since nobody else knows their keys: this is rare.
    Raises `StoreUnavailable`; safe to repeat.
    """
    run, store = left.run, left.run.store()
    try:
        key = run.key()
    except (LockKeyError, TypeError):
        key = ""  # then the child had none either
    if key:
        _release(left, store, key, run.owner, 0)
    for holder in store.leases():
        if run.owns(holder.owner):
            _release(left, store, holder.key, holder.owner, holder.token)


def _release(left: Left, store: Store, key: str, owner: str, token: int) -> None:
    answer = store.release(Claim(key, owner, left.run.ttl), token)
    if isinstance(answer, Released):
        logger.info(
            "Pool process %d died while it ran task %s: the lease on %r is released",
            *(left.pid, left.run.task, key),
            extra={"key": key, "owner": owner, "task_name": left.run.task},
        )
