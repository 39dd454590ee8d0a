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

# ruff: noqa: SLF001 - billiard tells of a death nowhere but in what it calls itself

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_fence.locking.clock import steady_clock
from celery_fence.task.remains import Left, Remains

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.store import Store

LOOKS, BETWEEN_LOOKS = 25, 0.02
"""How often, and after how many seconds, a process that closed its pipe is looked for."""

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


def watch_pool(pool: Any, deaths: Deaths) -> None:
    """
    Have *pool*, a billiard pool, tell *deaths* whenever it has buried processes.

    Everything that reaps a pool's processes goes through `_join_exited_workers`: the
    event loop when a process ends, the supervisor thread where there is no event loop.
    """
    join = pool._join_exited_workers

    def join_and_tell(*args: Any, **options: Any) -> Any:
        try:
            return join(*args, **options)
        finally:
            deaths.buried(process.pid for process in list(pool._pool))

    pool._join_exited_workers = join_and_tell
    if hasattr(pool, "_event_process_exit"):
        _look_again(pool)


def _look_again(pool: Any) -> None:
    """
    Have the event loop look for an ended process until it is buried, not just once.

    Kernel: closes the dying child's end of the pipe - event loop: hears of it, asks for
    an exit code, there is none yet, so it looks again after five seconds - kernel: the
    child is dead.
    """
    heard = pool._event_process_exit

    def hear_and_look(hub: Any, process: Any) -> None:
        heard(hub, process)
        look(hub, process, LOOKS)

    def look(hub: Any, process: Any, left: int) -> None:
        if left and process in pool._pool:
            hub.call_later(BETWEEN_LOOKS, look_now, hub, process, left - 1)

    def look_now(hub: Any, process: Any, left: int) -> None:
        pool.maintain_pool()
        look(hub, process, left)

    pool._event_process_exit = hear_and_look


def deaths_of(app: Any) -> Deaths | None:
    """The deaths that this worker watches for *app*; None where its pool has no processes, and in a pool process."""
    found = app.__dict__.get("_fence_deaths")
    pid, deaths = found or (None, None)
    return deaths if pid == os.getpid() else None


def watch_deaths(app: Any, pool: Any) -> Deaths | None:
    """Begin to watch the processes of *pool*, Celery's; None for a pool that has none."""
    processes = getattr(pool, "_pool", None)
    if not hasattr(processes, "_join_exited_workers"):
        return None
    deaths = Deaths()
    watch_pool(processes, deaths)
    app.__dict__["_fence_deaths"] = (os.getpid(), deaths)
    return deaths
