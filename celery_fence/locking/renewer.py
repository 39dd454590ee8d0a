"""
The heartbeat's calls to one store, in a thread of their own.

A store that hangs keeps its caller for some seconds. Were that the heartbeat, the leases
of another store, or those with a shorter TTL, would be renewed too late, and nobody would
notice that the trust in a lease has ended. So each store has a renewer, that makes one
call after the other, and the heartbeat only says what is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_fence.locking.duty import Duty
from celery_fence.locking.native import Wakeable, new_lock

if TYPE_CHECKING:
    from celery_fence.locking.notebook import Entry
    from celery_fence.locking.schedule import Watched

LOOK = 1.0
"""Seconds after which a renewer without work looks whether the heartbeat still lives."""

IDLE = 60.0
"""Seconds without work after which a renewer ends and gives up its connection."""


class Renewer:
    """
    Hands to *renew* and *write* what is due at one store; what comes during a call waits and goes together.

    All are called in the renewer's thread. The thread starts with the first work. When it
    ends it calls *close*: under gevent a connection belongs to the thread that opened it.
    What strikes the thread, it tells to *complain*, and goes on with the same work: each
    question to a store bears repeating. In each turn it calls *look*, which sees to the
    heartbeat's own thread.
    """

    def __init__(
        self,
        renew: Callable[[list[Watched]], object],
        write: Callable[[list[Entry]], object],
        close: Callable[[], object],
        look: Callable[[], object],
        complain: Callable[[BaseException], object],
    ) -> None:
        self._renew = renew
        self._write = write
        self._close = close
        self._look = look
        self._lock = new_lock()
        self._bell = Wakeable()
        self._duty = Duty(self._turn, self._take_back, complain)
        self._leases: list[Watched] = []
        self._notes: list[Entry] = []
        self._renewing: list[Watched] = []
        self._writing: list[Entry] = []
        self._busy_at = time.monotonic()
        self._ends = False

    @property
    def running(self) -> bool:
        """Whether its thread lives."""
        return self._duty.turning

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

    def mend(self) -> None:
        """Put another thread in the place of one that fell. RuntimeError as above."""
        with self._lock:
            self._duty.mend()

    def end(self) -> None:
        """Let the thread end when it has done what it was given; with more work it goes on."""
        self._ends = True
        self._bell.ring()

    def _start(self) -> None:
        """See that there is a thread; call with the lock held."""
        self._ends = False
        self._duty.keep()

    # --- in the renewer's own thread -----------------------------------------------------

    def _turn(self) -> None:
        """Do what there is, or wait for it; the last turn is the one that finds nothing for a long time."""
        self._take()
        if self._did(self._renewing, self._writing) or self._waits():
            self._look()
            return
        self._close()
        self._sign_off()

    def _take(self) -> None:
        with self._lock:
            self._renewing, self._leases = self._leases, []
            self._writing, self._notes = self._notes, []

    def _did(self, leases: list[Watched], notes: list[Entry]) -> bool:
        """Whether there was something to do."""
        if not leases and not notes:
            return False
        if leases:
            self._renew(leases)
        if notes:
            self._write(notes)
        self._renewing, self._writing = [], []
        self._busy_at = time.monotonic()
        return True

    def _waits(self) -> bool:
        """Wait for work; False when it is time to end."""
        if self._ends:
            return False
        return self._bell.wait(min(LOOK, IDLE)) or time.monotonic() < self._busy_at + IDLE

    def _sign_off(self) -> None:
        """End, unless work has come at the last moment."""
        with self._lock:
            if not self._leases and not self._notes:
                self._duty.end()

    def _take_back(self) -> None:
        """What was being done is to be done again."""
        with self._lock:
            self._leases += self._renewing
            self._notes += self._writing
            self._renewing, self._writing = [], []
