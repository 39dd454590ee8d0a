"""
How a running body is stopped, one file for each kind of pool.

A run that lost its lease should not work on. Nothing can stop it for certain, and the
fencing token is what keeps its writes out; but most bodies can be interrupted:

* `signals`: in a process's main thread (prefork, solo) a signal;
* `threads`: in any other thread (the threads pool) an asynchronous exception;
* `greenlets`: under gevent and eventlet a throw from the hub.

Two promises are the same everywhere. A strike lands within the guarded body or
nowhere, never in Celery's code: whether the body is still open is looked up in the same
step that strikes. And a body is struck once at most.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from celery_fence.locking.green import hub_here
from celery_fence.task.stopping import greenlets, signals, threads

if TYPE_CHECKING:
    from celery_fence.locking.lease import Lease


class Stopper(Protocol):
    """What can stop one body; made in the thread or greenlet that runs it."""

    def open(self) -> None:
        """From here on `strike` may stop what this thread or greenlet does. Called in it."""

    def close(self) -> None:
        """
        After this nothing strikes any more. Called in the body's thread or greenlet.

        Does nothing if it has come to its end before; whatever interrupts it, a second
        call completes it.
        """

    def strike(self, lease: Lease) -> None:
        """
        Raise the loss of *lease* in the body, if it is open. Called from any thread.

        Returns at once. Called by the body itself it does nothing: who asks the lease
        is told by the answer.
        """


def stopper_here() -> Stopper | None:
    """What can stop the code that runs here, or None on a system where nothing can."""
    hub = hub_here()
    if hub is not None:
        return greenlets.InGreenlet(hub)
    if threading.current_thread() is threading.main_thread():
        return signals.BySignal() if signals.INTERRUPT is not None else None
    return threads.ByException() if threads.POSSIBLE else None
