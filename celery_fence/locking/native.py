"""
Threads of the operating system, also where gevent or eventlet replaced `threading`.

The heartbeat must beat while a greenlet computes without yielding. A patched
thread is only another greenlet and would starve with it, so the primitives below
are the originals, taken from the patching library when it is loaded.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class Lock(Protocol):
    """What `_thread.allocate_lock` returns."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: D102, FBT001, FBT002
    def release(self) -> None: ...  # noqa: D102
    def locked(self) -> bool: ...  # noqa: D102
    def __enter__(self) -> bool: ...
    def __exit__(self, *exc: object) -> None: ...


def _original(name: str) -> Any:
    """The unpatched `_thread` function *name*."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original("_thread", name)
    if "eventlet.patcher" in sys.modules:
        return getattr(sys.modules["eventlet.patcher"].original("_thread"), name)
    return getattr(_thread, name)


def start_thread(function: Callable[[], None]) -> None:
    """Run *function* in a new thread of the operating system; like a daemon, it never keeps a process alive."""
    _original("start_new_thread")(function, ())


def thread_id() -> int:
    """The number of this thread of the operating system, the same in each of its greenlets."""
    ident: int = _original("get_ident")()
    return ident


def new_lock() -> Lock:
    """A lock between threads of the operating system; hold it for a few instructions only, never over I/O."""
    lock: Lock = _original("allocate_lock")()
    return lock


def pause(seconds: float) -> None:
    """Sleep in this thread of the operating system, without any hub."""
    if "gevent.monkey" in sys.modules:
        sys.modules["gevent.monkey"].get_original("time", "sleep")(seconds)
    elif "eventlet.patcher" in sys.modules:
        sys.modules["eventlet.patcher"].original("time").sleep(seconds)
    else:
        time.sleep(seconds)


class Wakeable:
    """
    A sleep that another thread can cut short; used by one sleeper.

    The bell is a lock that is taken while nobody has rung. That is all there is to know: whatever is
    thrown into the sleeper at whichever line, the next ring finds the bell as it is.
    """

    def __init__(self) -> None:
        self._bell = new_lock()
        self._bell.acquire()
        self._guard = new_lock()

    def wait(self, seconds: float) -> bool:
        """Sleep for at most *seconds*, or until somebody rings; whether somebody did."""
        return self._bell.acquire(timeout=min(max(seconds, 0.0), _thread.TIMEOUT_MAX))

    def ring(self) -> None:
        """Wake the sleeper, or the next one to come."""
        with self._guard:
            if self._bell.locked():
                self._bell.release()
