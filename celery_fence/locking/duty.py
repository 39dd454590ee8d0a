"""
A thread on duty: work that must go on, whatever is thrown into the thread that does it.

From outside an exception can be thrown into a thread at any call (PyThreadState_SetAsyncExc:
a pool's soft limit, a debugger, somebody's own code), also into the clean-up after the last
one. So no thread can see to its own succession. But Python lets go of the lock of a `with`
block by itself, without a call that could be struck, however the block is left. Each thread
lives in such a block: who finds its lock open knows that it fell, and puts another on duty.
Who brings work looks, and the heartbeat and its renewers look after each other.

What the fallen one had begun is still written down where the work is kept, and every step of
it bears repeating: the next thread takes it up. A lock that guards the work isn't left held
either, for the same reason (tried out with CPython 3.11, 3.12 and 3.13), as long as no loop
stands in the block itself: struck as a loop goes back, CPython 3.13 leaves the block without
its end. So loops are in functions that a block calls.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

from celery_fence.locking.native import new_lock, pause, start_thread

STUMBLE = 0.1
"""Seconds of rest after an exception that nobody foresaw, so that one which comes each time doesn't spin."""

GRACE = 1.0
"""Seconds that a thread is given to begin, on a machine that is busy. One that begins later finds itself replaced."""


_here = threading.local()
"""The shift of this thread, if it is on duty."""


def on_duty() -> bool:
    """Whether this is a thread on duty, which must not wait for other people's code."""
    shift = getattr(_here, "shift", None)
    return shift is not None and bool(shift.alive.locked())


class Fallen(RuntimeError):
    """The thread on duty is gone, and another takes its place."""


class Shift:
    """The time that one thread is on duty."""

    def __init__(self) -> None:
        self.ends = False
        self.alive = new_lock()
        self.begun = False
        self._called_at = time.monotonic()

    @property
    def lives(self) -> bool:
        """Whether its thread runs, or is about to."""
        return self.alive.locked() if self.begun else time.monotonic() - self._called_at < GRACE


class Duty:
    """
    Has *turn* called again and again, by one thread at a time, until `end`.

    An exception ends the turn, never the duty: before the next one, *take_back* sees to what the
    last one left undone, and *complain* tells of the exception. All three are called in the thread.
    The owner calls `keep`, `mend` and `end` with the lock of its work held, so that no work comes
    between the last look for some and the end.
    """

    def __init__(
        self,
        turn: Callable[[], object],
        take_back: Callable[[], object],
        complain: Callable[[BaseException], object],
    ) -> None:
        self._turn = turn
        self._take_back = take_back
        self._complain = complain
        self._wanted = False
        self._shift: Shift | None = None
        self._error: BaseException | None = None
        """What nobody has been told of yet."""
        self._recovering = False

    @property
    def running(self) -> bool:
        """Whether a thread is on duty, and lives."""
        return self._wanted and self.turning

    @property
    def turning(self) -> bool:
        """Whether the last thread lives: after `end` it may still be in its last turn."""
        return self._shift is not None and self._shift.lives

    def keep(self) -> None:
        """See that a thread is on duty. RuntimeError where the machine has none to spare: `mend` tries again."""
        if not self._wanted:
            self._wanted = True
            self._start()
        self.mend()

    def mend(self) -> None:
        """Put another thread on duty if the last one fell. RuntimeError as above."""
        if self._wanted and not self.turning:
            self._error = self._error or Fallen(Fallen.__doc__)
            self._start()

    def end(self) -> None:
        """Let the thread end after this turn."""
        self._wanted = False
        if self._shift is not None:
            self._shift.ends = True

    def _start(self) -> None:
        if self._shift is not None:
            self._shift.ends = True
        self._shift = shift = Shift()
        try:
            start_thread(functools.partial(self._run, shift))
        except BaseException:
            shift.ends = True  # also if it has been started: somebody's time limit may strike here
            self._shift = None
            raise

    # --- in the thread on duty -----------------------------------------------------------

    def _run(self, shift: Shift) -> None:
        with shift.alive:
            shift.begun = True
            _here.shift = shift
            self._serve(shift)

    def _serve(self, shift: Shift) -> None:
        while not shift.ends:
            try:
                if self._error is not None:
                    self._recover(self._error)
                self._turn()
            except BaseException as error:  # noqa: BLE001 - nothing ends it quietly, also no SystemExit thrown into it
                self._error = (
                    error  # and no more: a call from here may be struck, and nobody would catch that
                )

    def _recover(self, error: BaseException) -> None:
        """Take up again what is left undone, tell of *error*, and rest. Struck meanwhile, do a turn before the rest."""
        again, self._recovering = self._recovering, True
        self._take_back()
        if not again:
            self._complain(error)
            self._error = None
            pause(STUMBLE)
        self._recovering = False
