"""
Reaching greenlets from a thread of the operating system: gevent and eventlet.

The heartbeat's thread notices what the code of a greenlet has to hear. It must not run
observers, hooks and log lines itself: a lock that gevent or eventlet replaced, in the
logging module for example, can only be waited for in its own hub. With eventlet such a
thread and a greenlet that want one lock at one moment hang the worker for ever; with
gevent a client shared with greenlets fails. So what it has to tell is told in a greenlet.

gevent's loop takes calls from other threads. eventlet's takes none, so there a byte in a
pipe wakes a green listener, which lives for as long as anybody may call.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from celery_fence.locking.native import new_lock, thread_id

LINGER = 1.0
"""Seconds between two looks of an idle listener whether it is still needed."""

Tell = Callable[..., None]
"""Called with a function and its arguments, it calls that where other people's code may run."""


class Hub(Protocol):
    """The event loop that switches the greenlets of one thread."""

    thread: int
    """The number of its thread."""

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have the hub call *function*, from any thread; it runs in the hub and must not wait for anything."""

    def spawn(self, function: Callable[..., object], *args: Any) -> None:
        """Call *function* in a greenlet of its own; to be called in the hub's thread."""


def hub_here() -> Hub | None:
    """
    The hub that runs when this code waits, or None where threads are threads.

    One rules in its own greenlets, and in the main line of a program that is patched. A
    hub that merely exists, in a process that doesn't use greenlets, would never run.
    """
    if "gevent.hub" in sys.modules and _gevent_rules():
        return GeventHub()
    if "eventlet.hubs" in sys.modules and _eventlet_rules():
        return EventletHub.here()
    return None


def teller_here() -> Tell:
    """How threads of our own tell something to the code that runs here: at once, or in a greenlet."""
    hub = hub_here()
    return call if hub is None else functools.partial(_call_in, hub)


def call(function: Callable[..., object], *args: Any) -> None:
    """Call *function* here and now."""
    function(*args)


def running() -> Any:
    """The greenlet that runs; only where a hub rules."""
    return sys.modules["greenlet"].getcurrent()


def _call_in(hub: Hub, function: Callable[..., object], *args: Any) -> None:
    if thread_id() == hub.thread:
        function(*args)
    else:
        hub.soon(hub.spawn, function, *args)


def _gevent_rules() -> bool:
    parent = running().parent
    if parent is not None:
        return isinstance(parent, sys.modules["gevent.hub"].Hub)
    monkey = sys.modules.get("gevent.monkey")  # gevent may be imported and not used
    main = threading.current_thread() is threading.main_thread()
    return main and monkey is not None and bool(monkey.is_module_patched("threading"))


def _eventlet_rules() -> bool:
    parent = running().parent
    if parent is not None:
        return parent is _eventlet_hub().greenlet
    # Patched, it makes another object of the current thread, and keeps the number of the main one.
    main = thread_id() == threading.main_thread().ident
    return main and bool(sys.modules["eventlet.patcher"].is_monkey_patched("thread"))


class GeventHub:
    """As `Hub`, for the gevent hub of this thread."""

    def __init__(self) -> None:
        self.thread = thread_id()
        self._loop = sys.modules["gevent.hub"].get_hub().loop

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """As `Hub.soon`."""
        self._loop.run_callback_threadsafe(function, *args)

    def spawn(self, function: Callable[..., object], *args: Any) -> None:
        """As `Hub.spawn`."""
        sys.modules["gevent"].spawn(function, *args)


class EventletHub:
    """As `Hub`, for the eventlet hub of this thread. One for each thread, as long as anybody has it."""

    def __init__(self) -> None:
        self.thread = thread_id()
        self._calls = Calls()
        sys.modules["eventlet"].spawn_n(_listen, self._calls, weakref.ref(self))

    @classmethod
    def here(cls) -> EventletHub:
        """The one of this thread, made if there is none."""
        place = (os.getpid(), thread_id())
        found = _eventlet_hubs.get(place)
        if found is None:
            found = _eventlet_hubs[place] = cls()
        return found

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """As `Hub.soon`."""
        self._calls.put(function, args)

    def spawn(self, function: Callable[..., object], *args: Any) -> None:
        """As `Hub.spawn`."""
        sys.modules["eventlet"].spawn_n(function, *args)


class Calls:
    """What other threads want called, and the pipe that wakes who does it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._lock = new_lock()
        self._closed = False
        # Eventlet's own read and write switch to its hub, which another thread doesn't have.
        self._os = sys.modules["eventlet.patcher"].original("os")
        self.ear, self._mouth = self._os.pipe()
        self._os.set_blocking(self.ear, False)
        self._os.set_blocking(self._mouth, False)

    def put(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Ask for a call; from any thread."""
        self._waiting.append((function, args))
        with self._lock:
            if not self._closed:
                self._os.write(self._mouth, b"!")

    def take(self) -> list[tuple[Callable[..., object], tuple[Any, ...]]]:
        """Everything that is asked for by now; to be called when the pipe can be read."""
        self._os.read(self.ear, 4096)
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def close(self) -> None:
        """Close the pipe; with the lock, so that nobody writes into what took its number."""
        with self._lock:
            self._closed = True
            self._os.close(self.ear)
            self._os.close(self._mouth)


def _listen(calls: Calls, wanted: Callable[[], EventletHub | None]) -> None:
    """In a greenlet: hand to the hub what other threads ask for, until nobody can ask any more."""
    try:
        while True:
            if _has_been_called(calls):
                _hand_over(calls)
            elif wanted() is None:
                return
    finally:
        calls.close()


def _hand_over(calls: Calls) -> None:
    for function, args in calls.take():
        _eventlet_hub().schedule_call_global(0, function, *args)


def _has_been_called(calls: Calls) -> bool:
    quiet = sys.modules["eventlet.timeout"].Timeout
    try:
        sys.modules["eventlet.hubs"].trampoline(calls.ear, read=True, timeout=LINGER, timeout_exc=quiet)
    except quiet:
        return False
    return True


def _eventlet_hub() -> Any:
    return sys.modules["eventlet.hubs"].get_hub()


# Belongs to the process and its threads, as their hubs do.
_eventlet_hubs: weakref.WeakValueDictionary[tuple[int, int], EventletHub] = weakref.WeakValueDictionary()
