"""
Stopping a body in a greenlet, by a throw from its hub: gevent and eventlet pools.

It stops what waits in the hub: a sleep, a socket, a lock, a subprocess. A greenlet that
computes or blocks the whole thread doesn't let the hub run, so it is told only when it
asks its lease.

The loss is noticed in the heartbeat's thread, which must not touch a hub. gevent has a
call that may be made from there; eventlet has none, so there a byte in a pipe wakes a
green listener. Throwing happens in the hub's own thread, where nothing else runs between
the look at `_open` and the throw.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from celery_fence.locking.native import new_lock, thread_id

if TYPE_CHECKING:
    from celery_fence.locking.lease import Lease

LINGER = 1.0
"""Seconds an idle listener waits for another body before it ends."""


def kind_of(greenlet: Any) -> type[InGreenlet] | None:
    """What stops *greenlet*, by the hub that it waits in; None for a greenlet of anybody else."""
    gevent, eventlet = sys.modules.get("gevent.hub"), sys.modules.get("eventlet.hubs")
    if gevent is not None and isinstance(greenlet.parent, gevent.Hub):
        return InGevent
    if eventlet is not None and greenlet.parent is eventlet.get_hub().greenlet:
        return InEventlet
    return None


class InGreenlet:
    """What the two have in common: one greenlet, struck once, while its body is open."""

    def __init__(self, greenlet: Any) -> None:
        self._greenlet = greenlet
        self._thread = thread_id()
        self._open = False
        self._lease: Lease | None = None

    def open(self) -> None:
        """As `Stopper.open`."""
        self._open = True

    def close(self) -> None:
        """As `Stopper.close`."""
        self._open = False

    def strike(self, lease: Lease) -> None:
        """As `Stopper.strike`."""
        if self._open and not self._is_running_here():
            self._lease = lease
            self._ask_the_hub()

    def throw(self) -> None:
        """In the hub's thread: stop the body, once, if it is still open."""
        lease = self._lease
        if self._open and lease is not None:
            self._open = False
            self._greenlet.throw(lease.loss())

    def _is_running_here(self) -> bool:
        return thread_id() == self._thread and _getcurrent() is self._greenlet

    def _ask_the_hub(self) -> None:
        raise NotImplementedError


class InGevent(InGreenlet):
    """Stops a greenlet of gevent."""

    def __init__(self, greenlet: Any) -> None:
        super().__init__(greenlet)
        self._loop = greenlet.parent.loop

    def _ask_the_hub(self) -> None:
        self._loop.run_callback_threadsafe(self.throw)


class InEventlet(InGreenlet):
    """Stops a greenlet of eventlet."""

    def __init__(self, greenlet: Any) -> None:
        super().__init__(greenlet)
        self._listener: Listener | None = None

    def open(self) -> None:
        """As `Stopper.open`."""
        self._listener = Listener.here()
        self._listener.bodies.add(self)
        super().open()

    def close(self) -> None:
        """As `Stopper.close`."""
        super().close()
        if self._listener is not None:
            self._listener.bodies.discard(self)

    def throw(self) -> None:
        """As for all; who throws goes on as soon as the body waits for something again."""
        if self._open:
            hub = sys.modules["eventlet.hubs"].get_hub()
            hub.schedule_call_global(0, _getcurrent().switch)
            super().throw()

    def _ask_the_hub(self) -> None:
        if self._listener is not None:
            self._listener.call(self)


def _getcurrent() -> Any:
    return sys.modules["greenlet"].getcurrent()


class Listener:
    """
    A greenlet of eventlet that throws what other threads ask it to throw.

    One for each thread with a hub, started by its first body; it ends, and closes its
    pipe, when there has been no open body for a moment.
    """

    def __init__(self, place: tuple[int, int]) -> None:
        self.bodies: set[InEventlet] = set()
        self._place = place
        self._struck: deque[InEventlet] = deque()
        self._lock = new_lock()
        self._closed = False
        self._ear, self._mouth = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._mouth, False)

    @classmethod
    def here(cls) -> Listener:
        """The listener of this thread, started if there is none."""
        place = (os.getpid(), thread_id())
        found = _listeners.get(place)
        if found is None:
            found = _listeners[place] = cls(place)
            sys.modules["eventlet"].spawn_n(found._listen)
        return found

    def call(self, body: InEventlet) -> None:
        """Have *body* thrown into; from any thread."""
        self._struck.append(body)
        with self._lock:
            if not self._closed:
                os.write(self._mouth, b"!")

    def _listen(self) -> None:
        try:
            while self._wait() or self.bodies:
                while self._struck:
                    self._struck.popleft().throw()
        finally:
            self._close()

    def _wait(self) -> bool:
        """Wait for a call, for a moment at most; whether there was one."""
        hubs, timeout = sys.modules["eventlet.hubs"], sys.modules["eventlet.timeout"].Timeout
        try:
            hubs.trampoline(self._ear, read=True, timeout=LINGER, timeout_exc=timeout)
        except timeout:
            return False
        return bool(os.read(self._ear, 4096))

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        _listeners.pop(self._place, None)
        os.close(self._ear)
        os.close(self._mouth)


_listeners: dict[tuple[int, int], Listener] = {}  # belongs to the process and its threads, as their hubs do
