"""
The heartbeat: one scheduler per process that renews every lease.

It starts with the first lease, in a thread of the operating system (also under
gevent and eventlet), notices a fork, renews in batches, tries a failed renewal
again until trust ends, and is never ended by an exception. It stops by itself
when it has had nothing to do for a moment. What it has to tell, it tells where other
people's code may run (`celery_fence.locking.green`).

Three threads meet here, told as a timeline: a task's thread *watches* and *forgets*
leases; the heartbeat's thread pops those that are due and never waits for a store; the
renewer of their store (`celery_fence.locking.renewer`) asks it WITHOUT the lock, and
only then notes the answers (`celery_fence.locking.beat`). While a store doesn't answer, the
heartbeat goes on: it notices in time that the trust in a lease has ended.

Any of the threads may be ended from outside in any instant. What is due, asked for or to be
noted is therefore written down here and in the renewers, never in a thread alone, and whoever
comes by puts another thread in the place of a fallen one (`celery_fence.locking.duty`).
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_fence.locking.beat import Beat, next_beat
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.duty import STUMBLE, Duty
from celery_fence.locking.green import call, teller_here
from celery_fence.locking.native import Wakeable, new_lock, pause
from celery_fence.locking.notebook import Due, Entry, Notebook, counted, write
from celery_fence.locking.renewer import Renewer
from celery_fence.locking.schedule import Emit, Schedule, Watched

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.owed import Owed
    from celery_fence.locking.store import Store

logger = logging.getLogger(__name__)

LINGER = 1.0
"""Seconds the idle thread waits for another lease before it ends."""

GIVEN_UP = (
    "%s couldn't be noted as complete for ten minutes, which is given up: copies of those messages, if any come, do "
    "what follows a run once more"
)


class Heartbeat:
    """Renews leases until they end. One per process: `process_heartbeat()`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or steady_clock()
        self._stops_at_exit = False
        self._reset()

    def _reset(self) -> None:
        self._lock = new_lock()
        self._bell = Wakeable()
        complain = functools.partial(self._complain, "The heartbeat stumbled and goes on")
        self._duty = Duty(self._turn, self._take_back, complain)
        self._busy_at = self._wakes_at = 0.0
        self._leases = Schedule()
        self._tell = call
        self._notebook = Notebook()
        self._renewers: dict[int, Renewer] = {}
        self._pid = os.getpid()  # last, so that an interrupted reset is done again

    def watch(self, lease: Lease, emit: Emit) -> None:
        """Renew *lease* from now on, and tell *emit* what happens to it."""
        if self._pid != os.getpid():
            self._reset()  # a fork: the parent's thread and leases stayed in the parent
        first = next_beat(lease, lease.acquired_at)
        self._tell = teller_here()
        emit = functools.partial(self._tell, emit)
        with self._lock:
            self._leases.add(lease, emit, first)
            self._start()
            wake = first < self._wakes_at
        if wake:
            self._bell.ring()

    def forget(self, lease: Lease) -> None:
        """Stop renewing *lease*; an answer that is under way is dropped."""
        if self._pid == os.getpid():
            with self._lock:
                self._leases.drop(lease)

    def note(self, store: Store, due: Due) -> None:
        """Write a note to *store* within a second, or pay what is owed to it at once, off the caller's path."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._notebook.add(store, due, self._clock())
            self._start()
            wake = self._notebook.next_at(self._wakes_at) < self._wakes_at
        if wake:
            self._bell.ring()

    def owed_for(self, key: str, place: object) -> list[Owed]:
        """What this process owes for *key* at *place*: next to nothing to ask while nothing is owed at all."""
        if not self._notebook.owes:
            return []
        return [owed for owed in self._owed() if (owed.key, owed.place) == (key, place)]

    def flush(self, seconds: float, *, grace: float = 0.0) -> None:
        """
        Wait until all is written, and tell what isn't: the process is about to end.

        For at most *seconds*, or for *grace* seconds if that is longer and something is owed.
        """
        began = self._clock()
        while self.noting and self._clock() < began + self._patience(seconds, grace):
            self._bell.ring()
            pause(0.01)
        for owed in self._owed():
            owed.tell()

    def _patience(self, seconds: float, grace: float) -> float:
        return max(seconds, grace) if self._owed() else seconds

    def _owed(self) -> list[Owed]:
        if self._pid != os.getpid():
            return []
        with self._lock:
            return self._notebook.owed

    def stop(self) -> None:
        """
        Write what is to be noted and end the thread, within a moment.

        Called as the interpreter ends: a thread that is in the middle of a renewal
        then can bring it down.
        """
        if not self.running:
            return
        self.flush(LINGER)
        with self._lock:
            self._duty.end()
        end = self._clock() + LINGER
        while (self._duty.turning or self._end_renewers()) and self._clock() < end:
            self._bell.ring()
            pause(0.01)

    def _end_renewers(self) -> bool:
        """Let the renewers end; True while one of them has still something to do."""
        renewers = list(self._renewers.values())
        for renewer in renewers:
            renewer.end()
        return any(renewer.running for renewer in renewers)

    @property
    def noting(self) -> int:
        """How many notes are still to be written, and calls to be made up for."""
        if self._pid != os.getpid():
            return 0
        with self._lock:
            return len(self._notebook)

    @property
    def watching(self) -> int:
        """How many leases are being renewed."""
        return len(self._leases) if self._pid == os.getpid() else 0

    @property
    def running(self) -> bool:
        """Whether the thread lives, in this process."""
        return self._pid == os.getpid() and self._duty.running

    def _start(self) -> None:
        """Start the thread where there is none that lives; call with the lock held."""
        if self._duty.running:
            return
        if not self._stops_at_exit:
            atexit.register(self.stop)
            self._stops_at_exit = True
        self._busy_at = self._clock()
        self._duty.keep()

    # --- in the heartbeat's own thread ---------------------------------------------------

    def _turn(self) -> None:
        """Have renewed what is due, or wait for it; the last turn is the one that finds nothing more to do."""
        if self._ends_idle():
            return
        self._beat(self._wait_for_due())
        self._give_up_overdue()
        self._hand_out_notes()
        for renewer in list(self._renewers.values()):
            renewer.mend()

    def _ends_idle(self) -> bool:
        with self._lock:
            now = self._clock()
            if self._leases or self._notebook:
                self._busy_at = now
            if now - self._busy_at < LINGER:
                return False
            self._leases.clear()
            self._duty.end()
            return True

    def _wait_for_due(self) -> list[Watched]:
        now = self._clock()
        with self._lock:
            due = self._leases.take_due(now)
            self._wakes_at = self._leases.next_at(self._notebook.next_at(now + LINGER))
            sleep = self._wakes_at - now
        if not due:
            self._bell.wait(sleep)
        return due

    def _beat(self, due: list[Watched]) -> None:
        """Have all renewed that are still trusted; the others are lost without asking."""
        by_store: defaultdict[int, list[Watched]] = defaultdict(list)
        for lease, emit in due:
            if lease.lost or lease.ended:
                self.forget(lease)
            else:
                by_store[id(lease.renewals)].append((lease, emit))
        for pairs in by_store.values():
            self._renewer_of(pairs[0][0].renewals).renew(pairs)

    def _give_up_overdue(self) -> None:
        """The store hasn't answered yet, and needn't any more: trust in these is over."""
        with self._lock:
            overdue = self._leases.overdue(self._clock())
        for lease in overdue:
            if lease.lost:
                self.forget(lease)

    def _hand_out_notes(self) -> None:
        with self._lock:
            entries = self._notebook.take(self._clock())
        by_store: defaultdict[int, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_store[id(entry[0])].append(entry)
        for notes in by_store.values():
            try:
                self._renewer_of(notes[0][0]).write(notes)
            except RuntimeError as error:
                self._complain("Noting that runs are complete has to wait", error)
                self._settle(notes, failed=notes)

    def _renewer_of(self, store: Store) -> Renewer:
        # It knows its store, which can't be taken for a later one that has its number.
        found = self._renewers.get(id(store))
        return found or self._renewers.setdefault(id(store), self._new_renewer(store))

    def _new_renewer(self, store: Store) -> Renewer:
        beat = Beat(store, self._clock, again=self._again, forget=self.forget, complain=self._complain)
        return Renewer(
            functools.partial(self._renew, beat.renew),
            self._write,
            functools.partial(self._close, store),
            self._mend,
            functools.partial(self._complain, "A renewer stumbled and goes on"),
        )

    def _take_back(self) -> None:
        """Something struck: what it may have left half done is due again."""
        with self._lock:
            self._leases.take_back(self._clock() + STUMBLE)
            self._notebook.take_back()

    def _complain(self, message: str, error: BaseException) -> None:
        self._tell(functools.partial(logger.error, message, exc_info=error))

    # --- in a renewer's thread -----------------------------------------------------------

    def _mend(self) -> None:
        with self._lock:
            self._duty.mend()

    def _renew(self, renew: Callable[[list[Watched]], object], due: list[Watched]) -> None:
        try:
            renew(due)
        except BaseException as error:  # noqa: BLE001 - those that were told aren't to be asked for again
            self._take_back()
            self._complain("The heartbeat stumbled and goes on", error)

    def _write(self, entries: list[Entry]) -> None:
        failed = entries
        try:
            failed = write(entries, functools.partial(self._tell, self._notebook.complain))
        except BaseException as error:  # noqa: BLE001 - a note is no reason to ask for leases again
            self._complain("Noting that runs are complete broke", error)
        finally:
            self._settle(entries, failed=failed)

    def _settle(self, entries: list[Entry], *, failed: list[Entry]) -> None:
        with self._lock:
            given_up = self._notebook.settle(entries, failed, self._clock())
            wake = self._notebook.next_at(self._wakes_at) < self._wakes_at
        if wake:
            self._bell.ring()
        if given_up:
            self._tell(functools.partial(logger.warning, GIVEN_UP, counted(given_up)))

    def _close(self, store: Store) -> None:
        try:
            store.close()
        except Exception as error:  # noqa: BLE001 - a connection that nobody needs any more
            self._complain("A connection couldn't be closed", error)

    def _again(self, lease: Lease, emit: Emit, at: float) -> None:
        with self._lock:
            self._leases.again(lease, emit, at)
            wake = at < self._wakes_at
        if wake:
            self._bell.ring()


_process_heartbeat: list[Heartbeat] = []


def process_heartbeat() -> Heartbeat:
    """The heartbeat of this process, whatever apps live in it; it holds nothing once the last lease has ended."""
    if not _process_heartbeat:
        _process_heartbeat.append(Heartbeat())
    return _process_heartbeat[0]
