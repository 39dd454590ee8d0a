"""
The heartbeat's calls to one store, in a thread of their own.

A store that hangs keeps its caller for some seconds. Were that the heartbeat, the leases
of another store, or those with a shorter TTL, would be renewed too late, and nobody would
notice that the trust in a lease has ended. So each store has a renewer, that makes one
call after the other, and the heartbeat only says what is due.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_fence.locking.native import Wakeable, new_lock, pause, start_thread

if TYPE_CHECKING:
    from celery_fence.locking.notebook import Entry
    from celery_fence.locking.schedule import Watched

Work = tuple[list["Watched"], list["Entry"]]

STUMBLE = 0.1
"""Seconds of rest after what nobody foresaw, so that one which comes each time doesn't spin."""

IDLE = 60.0
"""Seconds without work after which a renewer ends and gives up its connection."""


class Renewer:
    """
    Hands to *renew* and *write* what is due at one store; what comes during a call waits and goes together.

    All are called in the renewer's thread. The thread starts with the first work. When it
    ends it calls *close*: under gevent a connection belongs to the thread that opened it.
    What strikes the thread, it tells to *complain*, and goes on with the same work: each
    question to a store bears repeating.
    """

    def __init__(
        self,
        renew: Callable[[list[Watched]], object],
        write: Callable[[list[Entry]], object],
        close: Callable[[], object],
        complain: Callable[[BaseException], object],
    ) -> None:
        self._renew = renew
        self._write = write
        self._close = close
        self._complain = complain
        self._lock = new_lock()
        self._bell = Wakeable()
        self._leases: list[Watched] = []
        self._notes: list[Entry] = []
        self._doing: Work = [], []
        self._ends = False
        self._thread: object | None = None

    @property
    def running(self) -> bool:
        """Whether its thread lives."""
        return self._thread is not None

    def renew(self, due: list[Watched]) -> None:
        """Have the leases *due* renewed. RuntimeError where the machine has no thread to spare."""
        with self._lock:
            self._start()
            self._leases += due
        self._bell.ring()

    def write(self, notes: list[Entry]) -> None:
        """Have *notes* written. RuntimeError as above."""
        with self._lock:
            self._start()
            self._notes += notes
        self._bell.ring()

    def end(self) -> None:
        """Let the thread end when it has done what it was given; with more work it goes on."""
        self._ends = True
        self._bell.ring()

    def _start(self) -> None:
        """Start the thread where there is none; call with the lock held."""
        self._ends = False
        if self._thread is None:
            mark = object()
            start_thread(functools.partial(self._run, mark))
            self._thread = mark

    # --- in the renewer's own thread -----------------------------------------------------

    def _run(self, mark: object) -> None:
        try:
            while self._turn(mark):
                pass
        finally:
            self._bury(mark)

    def _turn(self, mark: object) -> bool:
        """Do what there is, or wait for it; False when the thread has nothing to do any more."""
        try:
            self._take()
            if self._did(*self._doing) or self._waits():
                return True
            self._close()
            return not self._signs_off(mark)
        except BaseException as error:  # noqa: BLE001 - nothing ends it quietly, also no SystemExit thrown into it
            self._take_back()
            self._complain(error)
            pause(STUMBLE)
            return True

    def _take(self) -> None:
        with self._lock:
            self._doing = self._leases, self._notes
            self._leases, self._notes = [], []

    def _did(self, leases: list[Watched], notes: list[Entry]) -> bool:
        """Whether there was something to do."""
        if leases:
            self._renew(leases)
        if notes:
            self._write(notes)
        self._doing = [], []
        return bool(leases or notes)

    def _waits(self) -> bool:
        """Wait for work; False when it is time to end."""
        return not self._ends and self._bell.wait(IDLE)

    def _signs_off(self, mark: object) -> bool:
        """Note the end; False when work has come at the last moment."""
        with self._lock:
            if self._leases or self._notes or self._thread is not mark:
                return False
            self._thread = None
            return True

    def _take_back(self) -> None:
        """What was being done is to be done again."""
        with self._lock:
            self._put_back()

    def _bury(self, mark: object) -> None:
        """Where something struck between two turns, and ended the thread: another takes its place, if there is work."""
        with self._lock:
            if self._thread is not mark:
                return
            self._thread = None
            self._put_back()
            if self._leases or self._notes:
                self._start()

    def _put_back(self) -> None:
        leases, notes = self._doing
        self._doing = [], []
        self._leases += leases
        self._notes += notes
