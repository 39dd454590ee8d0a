"""
The heartbeat's calls to one store, in a thread of their own.

A store that hangs keeps its caller for some seconds. Were that the heartbeat, the leases
of another store, or those with a shorter TTL, would be renewed too late, and nobody would
notice that the trust in a lease has ended. So each store has a renewer, that makes one
call after the other, and the heartbeat only says what is due.
"""

from __future__ import annotations

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
        self._ends = False
        self.running = False
        """Whether its thread lives."""

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
        self._ends = False
        if not self.running:
            start_thread(self._run)
            self.running = True

    # --- in the renewer's own thread -----------------------------------------------------

    def _run(self) -> None:
        while True:
            taken: Work = [], []
            try:
                taken = self._take()
                if self._did(*taken) or self._waits():
                    continue
                self._close()
                if self._signs_off():
                    return
            except BaseException as error:  # noqa: BLE001 - nothing ends it quietly, also no SystemExit thrown into it
                self._take_back(*taken)
                self._complain(error)
                pause(STUMBLE)

    def _did(self, leases: list[Watched], notes: list[Entry]) -> bool:
        """Whether there was something to do."""
        if leases:
            self._renew(leases)
        if notes:
            self._write(notes)
        return bool(leases or notes)

    def _take_back(self, leases: list[Watched], notes: list[Entry]) -> None:
        with self._lock:
            self._leases += leases
            self._notes += notes
            self.running = True

    def _take(self) -> Work:
        with self._lock:
            taken = self._leases, self._notes
            self._leases, self._notes = [], []
            return taken

    def _waits(self) -> bool:
        """Wait for work; False when it is time to end."""
        return not self._ends and self._bell.wait(IDLE)

    def _signs_off(self) -> bool:
        """Note the end; False when work has come at the last moment."""
        with self._lock:
            self.running = bool(self._leases or self._notes)
            return not self.running
