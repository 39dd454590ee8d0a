"""
Stopping a body in a thread, by an asynchronous exception: the threads pool.

Python raises it between two instructions, so a loop is stopped at once, while a call into
C (a sleep, a socket, a driver) is stopped when it returns. It may come late: raised for an
open body and delivered when that one has just ended. Told as a timeline, with the lock:

    heartbeat  takes the lock, sees that the body is open, sets the exception, lets go
    body       ends, takes the lock, closes; an exception that was set arrives before `close` returns

so after `close` none is pending, and one that arrives within it is caught by its caller.
(Taking it back by setting NULL would do the same, but leaves CPython 3.11 looking for an
exception at every call for the rest of the process's life.)
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from celery_fence.errors import LeaseLost
from celery_fence.locking.native import new_lock, thread_id

if TYPE_CHECKING:
    from celery_fence.locking.lease import Lease

_set_exception: Any = getattr(getattr(ctypes, "pythonapi", None), "PyThreadState_SetAsyncExc", None)

POSSIBLE = _set_exception is not None
"""CPython has it; other Pythons need not."""


class ByException:
    """Stops what this thread does."""

    def __init__(self) -> None:
        self._thread = thread_id()
        self._lock = new_lock()
        self._open = False
        self._struck = False

    def open(self) -> None:
        """As `Stopper.open`."""
        with self._lock:
            self._open = True

    def close(self) -> None:
        """As `Stopper.close`; an exception that was set and hasn't arrived is raised here."""
        with self._lock:
            self._open = False
        # Python looks for one after each call into C, the release of the lock being the last.

    def strike(self, lease: Lease) -> None:
        """As `Stopper.strike`."""
        if thread_id() == self._thread:
            return
        thread, loss = ctypes.c_ulong(self._thread), ctypes.py_object(loss_class(lease))
        with self._lock:
            if self._open and not self._struck:
                self._struck = True  # no call stands between the two, so nothing strikes the striker there
                _set_exception(thread, loss)


class Struck(LeaseLost):
    """What is raised in the body; the block's end makes a plain `LeaseLost` of it."""


def loss_class(lease: Lease) -> type[Struck]:
    """
    The loss of *lease* as a class of its own, made without arguments.

    An asynchronous exception can only be a class. What is made from it travels between
    processes as a plain `LeaseLost`.
    """
    loss = lease.loss()

    class Lost(Struck):
        def __init__(self) -> None:
            super().__init__(str(loss), key=loss.key, token=loss.token, reason=loss.reason)

        def __reduce__(self) -> Any:
            return loss.__reduce__()

    Lost.__name__ = Lost.__qualname__ = "LeaseLost"
    return Lost
