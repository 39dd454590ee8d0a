"""
Freeing what a pool process held when it died, from the worker's main process.

Nothing runs in a child that is killed (SIGKILL, out of memory, a hard time limit,
`os._exit`), so its leases would stay until their TTL ends. The main process knows the
owner of each run, because it made it, and hears of the death from billiard, which has
waited for the child by then: never earlier, while the body can still run. Celery's own
hooks (`on_failure`, `after_return`, `task_failure`) are of no use here: they come before the
kill, or seconds after it.

Leases are released by owner, so a reused process id or a lease that meanwhile belongs to
somebody else can't be hit. Told as a timeline of the threads:

    main       a child accepts a run: noted. Its result arrives: forgotten.
    main       billiard has buried a child: its noted run, if any, is handed over
    native     releases it, again and again until the store answers or the TTL is over
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_fence.errors import LockKeyError, StoreUnavailable
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.native import Wakeable, new_lock, pause, start_thread
from celery_fence.locking.store import Claim, Released

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.store import Store

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0

SHARE = "."
"""Between a run's owner and the rest of the owner of a `hold` block inside it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """
    A run that a pool process has accepted.

    *key* renders the run's key, which may fail as it may in the child; *ttl*, in
    seconds, is how long its leases live after a death at most.
    """

    owner: str
    task: str
    ttl: float
    key: Callable[[], str]
    store: Callable[[], Store]

    def owns(self, owner: str) -> bool:
        """Whether *owner* is this run or a `hold` block inside it."""
        return owner == self.owner or owner.startswith(self.owner + SHARE)


@dataclass(frozen=True, slots=True)
class Left:
    """What a dead process left: release it, at latest by the time its leases end by themselves."""

    run: Accepted
    pid: int
    until: float


class Deaths:
    """Which pool process runs what, and the release of what the dead ones left."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or steady_clock()
        self._accepted: dict[int, Accepted] = {}
        self._lock = new_lock()
        self._waiting: list[Left] = []
        self._busy = False
        self._idle = Wakeable()

    @property
    def busy(self) -> list[int]:
        """The processes that run something, as far as is known here."""
        return list(self._accepted)

    def accepted(self, pid: int, run: Accepted) -> None:
        """The process *pid* runs *run*; what it ran before has ended."""
        self._accepted[pid] = run

    def ended(self, pid: int | None, owner: str) -> None:
        """The result of *owner*'s run has arrived: it has released its leases itself."""
        if pid is None:
            return
        run = self._accepted.get(pid)
        if run is not None and run.owner == owner:
            self._accepted.pop(pid, None)

    def buried(self, alive: Iterable[int]) -> None:
        """Only *alive* are left of the pool's processes: free what the others held. Returns at once."""
        living = set(alive)
        dead = [pid for pid in self.busy if pid not in living]
        now = self._clock()
        for pid in dead:
            run = self._accepted.pop(pid, None)
            if run is not None:
                with self._lock:
                    self._waiting.append(Left(run, pid, now + run.ttl))
        self._keep_at_work()

    def finish(self, seconds: float) -> None:
        """Wait until everything is released, for at most *seconds*: the worker is about to end."""
        if self._busy:
            self._idle.wait(seconds)

    def _keep_at_work(self) -> None:
        """
        Have a thread release what waits.

        One that the machine can't spare, or that something struck, is made up for at the next look: the pool
        looks for dead processes every few seconds.
        """
        with self._lock:
            start = bool(self._waiting) and not self._busy
            self._busy = self._busy or start
        if not start:
            return
        try:
            start_thread(self._work)
        except RuntimeError:
            self._busy = False
            logger.exception("What dead pool processes held can't be released yet")

    # --- in a thread of its own ---------------------------------------------------------------

    def _work(self) -> None:
        """Release until nothing is left to do. What strikes ends the thread, and nothing is forgotten."""
        wait = FIRST_PAUSE
        try:
            while batch := self._look():
                kept = self._release(batch)
                self._settle(batch, kept)
                if kept:
                    pause(wait)
                wait = min(2 * wait, LONGEST_PAUSE) if kept else FIRST_PAUSE
        except BaseException:
            self._busy = False
            raise
        self._idle.ring()

    def _look(self) -> list[Left]:
        with self._lock:
            self._busy = bool(self._waiting)
            return list(self._waiting)

    def _settle(self, batch: list[Left], kept: list[Left]) -> None:
        done = {id(left) for left in batch} - {id(left) for left in kept}
        with self._lock:
            self._waiting = [left for left in self._waiting if id(left) not in done]

    def _release(self, batch: list[Left]) -> list[Left]:
        """Release what *batch* left; returns what has to be tried again."""
        kept: list[Left] = []
        for left in batch:
            try:
                release_all(left)
            except StoreUnavailable as error:
                if self._clock() < left.until:
                    kept.append(left)
                else:
                    logger.warning(
                        "The leases of task %s stayed until their TTL ended after pool process %d died: %s",
                        *(left.run.task, left.pid, error),
                    )
            except Exception:
                logger.exception(
                    "The leases of task %s stay until their TTL ends: pool process %d died, and releasing them failed",
                    *(left.run.task, left.pid),
                )
        return kept


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
