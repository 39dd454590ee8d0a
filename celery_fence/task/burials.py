"""
Hearing from billiard of the pool processes that it has buried.

See `celery_fence.task.deaths` for what is made of it.
"""

# ruff: noqa: SLF001 - billiard tells of a death nowhere but in what it calls itself

from __future__ import annotations

import os
from typing import Any

from celery_fence.task.deaths import Deaths

LOOKS, BETWEEN_LOOKS = 25, 0.02
"""How often, and after how many seconds, a process that closed its pipe is looked for."""


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
