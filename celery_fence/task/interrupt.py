"""
Stopping a body that lost its lease, where the pool allows it.

In the main thread of a process (prefork and solo pools) a signal interrupts sleeping,
sockets and loops alike. The handler raises only while a guarded body runs, never in
Celery's own code or ours. In other pools the body is told by `lease.check()`.
"""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_fence.locking.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

logger = logging.getLogger(__name__)

INTERRUPT = getattr(signal, "SIGUSR2", None)
"""Free in Celery's pool processes; SIGUSR1 is their soft time limit."""


class Guard:
    """The bodies that run in the main thread of this process right now, the innermost last."""

    def __init__(self) -> None:
        self._bodies: list[Body] = []
        self._before: Any = None
        self._installed = False

    def install(self) -> None:
        """Set the signal's handler once, from the main thread; a handler that was there is called on."""
        if self._installed or INTERRUPT is None:
            return
        self._before = signal.signal(INTERRUPT, self._interrupted)
        self._installed = True

    @contextmanager
    def around(self, body: Body) -> Iterator[None]:
        """Let *body* be interrupted within the block."""
        self._bodies.append(body)
        try:
            body.open = True
            yield
        finally:
            body.open = False
            self._bodies.remove(body)

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        for body in reversed(self._bodies):
            lost = body.lost
            if body.open and lost is not None:
                body.open = False
                raise lost.loss()
        if callable(self._before):
            self._before(signum, frame)


class Body:
    """One running body and the lease whose loss stops it."""

    __slots__ = ("lost", "open")

    def __init__(self) -> None:
        self.lost: Lease | None = None
        self.open = False


_guard = Guard()  # belongs to the process, as its table of signal handlers does


@contextmanager
def interruptible(body: Body, *, wanted: bool) -> Iterator[None]:
    """Run the block so that `interrupter` can stop it, if *wanted* and if this is a main thread."""
    if not wanted or INTERRUPT is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _guard.install()
    with _guard.around(body):
        yield


def interrupter(body: Body) -> Callable[[Lease], None]:
    """What to call, from any thread, when a lease of *body* is lost."""
    main = threading.main_thread().ident

    def interrupt(lease: Lease) -> None:
        body.lost = lease
        if body.open and INTERRUPT is not None and main is not None and threading.get_ident() != main:
            signal.pthread_kill(main, INTERRUPT)

    return interrupt
