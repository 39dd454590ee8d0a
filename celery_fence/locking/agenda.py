"""
What is due in a process: leases to be renewed, notes to be written, calls to be made up for.

Here the threads of the heartbeat meet, told as a timeline: a task's thread *watches* and *drops*
leases; the heartbeat's thread takes those that are due and never waits for a store; the
renewer of their store (`celery_fence.locking.renewer`) asks it WITHOUT the lock, and
only then has the answers noted (`celery_fence.locking.beat`).

Any of them may be ended from outside in any instant. What is due, asked for or to be noted is
therefore written down here and in the renewers, never in a thread alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_fence.locking.native import Wakeable, new_lock
from celery_fence.locking.notebook import Due, Entry, Notebook
from celery_fence.locking.schedule import Emit, Schedule, Watched

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.owed import Owed
    from celery_fence.locking.store import Store


class Agenda:
    """
    Added to by many threads, worked off by one; its *lock* is held for moments only, never over I/O.

    What is due before that one means to wake up rings the *bell*. *start*, where it is asked for, is
    called under the lock: so a thread that finds nothing to do can't end in the same moment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lock = new_lock()
        self.bell = Wakeable()
        self.leases = Schedule()
        self.notebook = Notebook()
        self.wakes_at = 0.0

    def __bool__(self) -> bool:
        return bool(self.leases or self.notebook)

    def watch(self, lease: Lease, emit: Emit, at: float, start: Callable[[], object]) -> None:
        """Have *lease* renewed at *at*."""
        with self.lock:
            self.leases.add(lease, emit, at)
            start()
            wake = at < self.wakes_at
        self._wake(wake)

    def again(self, lease: Lease, emit: Emit, at: float) -> None:
        """Have *lease* renewed at *at*, unless it was dropped meanwhile."""
        with self.lock:
            self.leases.again(lease, emit, at)
            wake = at < self.wakes_at
        self._wake(wake)

    def drop(self, lease: Lease) -> None:
        """Renew *lease* no more."""
        with self.lock:
            self.leases.drop(lease)

    def note(self, store: Store, due: Due, start: Callable[[], object]) -> None:
        """Have *due* written or paid."""
        with self.lock:
            self.notebook.add(store, due, self._clock())
            start()
            wake = self._notes_wake()
        self._wake(wake)

    def settle(self, entries: list[Entry], failed: list[Entry]) -> int:
        """Those *entries* are written but for the *failed*, as of a `Notebook`; returns how many are given up."""
        with self.lock:
            given_up = self.notebook.settle(entries, failed, self._clock())
            wake = self._notes_wake()
        self._wake(wake)
        return given_up

    @property
    def owed(self) -> list[Owed]:
        """What isn't paid yet; asked for without the lock while nothing is owed at all."""
        if not self.notebook.owes:
            return []
        with self.lock:
            return self.notebook.owed

    @property
    def noting(self) -> int:
        """How many notes are still to be written, and calls to be made up for."""
        with self.lock:
            return len(self.notebook)

    # --- in the thread that works it off -------------------------------------------------

    def wait_for_leases(self, most: float) -> list[Watched]:
        """The leases that are due; where there are none, after a rest until something is, of *most* seconds."""
        now = self._clock()
        with self.lock:
            due = self.leases.take_due(now)
            self.wakes_at = self.leases.next_at(self.notebook.next_at(now + most))
            sleep = self.wakes_at - now
        if not due:
            self.bell.wait(sleep)
        return due

    def overdue(self) -> list[Watched]:
        """The leases that are asked for, and whose trust has ended without an answer."""
        with self.lock:
            return self.leases.overdue(self._clock())

    def take_notes(self) -> list[Entry]:
        """The notes that are due."""
        with self.lock:
            return self.notebook.take(self._clock())

    def take_back(self, rest: float) -> None:
        """Something struck: what it may have left half done is due again, the leases after *rest* seconds."""
        with self.lock:
            self.leases.take_back(self._clock() + rest)
            self.notebook.take_back()

    def _notes_wake(self) -> bool:
        return self.notebook.next_at(self.wakes_at) < self.wakes_at

    def _wake(self, wake: bool) -> None:  # noqa: FBT001 - what is said in one word
        if wake:
            self.bell.ring()
