"""
Stopping a body in a greenlet, by a throw from its hub: gevent and eventlet pools.

It stops what waits in the hub: a sleep, a socket, a lock, a subprocess. A greenlet that
computes or blocks the whole thread doesn't let the hub run, so it is told only when it
asks its lease. Throwing happens in the hub, where nothing else runs between the look at
`_open` and the throw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_fence.locking.green import running
from celery_fence.locking.native import thread_id

if TYPE_CHECKING:
    from celery_fence.locking.green import Hub
    from celery_fence.locking.lease import Lease


class InGreenlet:
    """Stops what this greenlet does."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._greenlet: Any = running()
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
            self._hub.soon(self._throw)

    def _is_running_here(self) -> bool:
        return thread_id() == self._hub.thread and running() is self._greenlet

    def _throw(self) -> None:
        """In the hub: stop the body, once, if it is still open."""
        lease = self._lease
        if self._open and lease is not None:
            self._open = False
            self._greenlet.throw(lease.loss())
