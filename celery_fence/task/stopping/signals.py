"""
Stopping a body in the main thread of a process, by a signal: prefork and solo pools.

It interrupts sleeping, sockets and loops alike, and C code when it returns. Python runs
the handler in the main thread between two instructions, so whether the body is open and
the raise are one step.
"""

from __future__ import annotations

import signal
import weakref
from typing import TYPE_CHECKING, Any

from celery_fence.locking.native import thread_id

if TYPE_CHECKING:
    from types import FrameType

    from celery_fence.locking.lease import Lease

INTERRUPT = getattr(signal, "SIGUSR2", None)
"""Free in Celery's pool processes; SIGUSR1 is their soft time limit."""


class Guard:
    """The signal's handler, and the open bodies of the main thread."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[BySignal] = weakref.WeakSet()
        self._before: Any = None
        self._installed = False

    def install(self) -> None:
        """Set the handler once, from the main thread; one that was there is called on."""
        if self._installed or INTERRUPT is None:
            return
        self._before = signal.signal(INTERRUPT, self._interrupted)
        self._installed = True

    def add(self, body: BySignal) -> None:
        """Let the handler stop *body*."""
        self._open.add(body)

    def remove(self, body: BySignal) -> None:
        """No longer; doing it again changes nothing."""
        self._open.discard(body)

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        for body in list(self._open):
            body.raise_if_struck()
        if callable(self._before):
            self._before(signum, frame)


_guard = Guard()  # belongs to the process, as its table of signal handlers does


class BySignal:
    """Stops what the main thread does."""

    def __init__(self) -> None:
        self._main = thread_id()
        self._lease: Lease | None = None
        self._open = False

    def open(self) -> None:
        """As `Stopper.open`."""
        _guard.install()
        _guard.add(self)
        self._open = True

    def close(self) -> None:
        """As `Stopper.close`."""
        self._open = False
        _guard.remove(self)

    def strike(self, lease: Lease) -> None:
        """As `Stopper.strike`."""
        self._lease = lease
        if self._open and INTERRUPT is not None and thread_id() != self._main:
            signal.pthread_kill(self._main, INTERRUPT)

    def raise_if_struck(self) -> None:
        """In the handler: stop the body, once."""
        lease = self._lease
        if self._open and lease is not None:
            self._open = False
            raise lease.loss()
