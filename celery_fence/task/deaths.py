"""
Freeing what a pool process held when it died, from the worker's main process.

Nothing runs in a child that is killed (SIGKILL, out of memory, a hard time limit,
`os._exit`), so its leases would stay until their TTL ends. The main process knows the
owner of each run, because it made it, and hears of the death from billiard, which has
waited for the child by then: never earlier, while the body can still run. Celery's own
hooks (`on_failure`, `after_return`, `task_failure`) are of no use here: they come before the
kill, or seconds after it.

Told as a timeline of the threads, the second of which is that of `celery_fence.task.remains`:

    main       a child accepts a run: noted. Its result arrives: forgotten.
    main       billiard has buried a child: its noted run, if any, is handed over
    on duty    releases it, again and again until the store answers or the TTL is over
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_fence.locking.clock import steady_clock
from celery_fence.task.remains import Left, Remains

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.store import Store

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


class Deaths:
    """Which pool process runs what, and the release of what the dead ones left."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or steady_clock()
        self._accepted: dict[int, Accepted] = {}
        self._remains = Remains(self._clock)

    @property
    def busy(self) -> list[int]:
        """The processes that run something, as far as is known here."""
        return list(self._accepted)

    def accepted(self, pid: int, run: Accepted) -> None:
        """The process *pid* runs *run*; what it ran before has ended."""
        self._accepted[pid] = run
        self._remains.mend()

    def ended(self, pid: int | None, owner: str) -> None:
        """The result of *owner*'s run has arrived: it has released its leases itself."""
        if pid is None:
            return
        run = self._accepted.get(pid)
        if run is not None and run.owner == owner:
            self._accepted.pop(pid, None)

    def buried(self, alive: Iterable[int]) -> None:
        """Only *alive* are left of the pool's processes: free what the others held. Returns at once."""
        living, now = set(alive), self._clock()
        for pid, run in list(self._accepted.items()):
            if pid not in living:
                self._remains.bring(Left(run, pid, now + run.ttl))
                self._accepted.pop(pid, None)
        self._remains.mend()

    def finish(self, seconds: float) -> None:
        """Wait until everything is released, for at most *seconds*: the worker is about to end."""
        self._remains.finish(seconds)
