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
only then notes the answers. While a store doesn't answer, the heartbeat goes on: it
notices in time that the trust in a lease has ended. A lease that was released or lost in
between is recognised by its state and its answer dropped.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.green import call, teller_here
from celery_fence.locking.native import Wakeable, new_lock, pause, start_thread
from celery_fence.locking.notebook import Duty, Entry, Notebook, write
from celery_fence.locking.renewer import Renewer
from celery_fence.locking.schedule import Emit, Schedule, Watched
from celery_fence.locking.store import Gone, Kept, Renewal
from celery_fence.locking.trust import renewal_due

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.store import RenewAnswer, Store

logger = logging.getLogger(__name__)

BATCH = 100
"""Leases renewed in one call to the store."""

LINGER = 1.0
"""Seconds the idle thread waits for another lease before it ends."""

STUMBLE = 0.1
"""Seconds of rest after an exception that nobody foresaw, so that one which comes each time doesn't spin."""


class Heartbeat:
    """Renews leases until they end. One per process: `process_heartbeat()`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or steady_clock()
        self._stops_at_exit = False
        self._reset()

    def _reset(self) -> None:
        self._lock = new_lock()
        self._bell = Wakeable()
        self._thread: object | None = None
        self._wakes_at = 0.0
        self._leases = Schedule()
        self._tell = call
        self._notebook = Notebook()
        self._renewers: dict[int, Renewer] = {}
        self._writing = 0
        self._turning = False
        self._pid = os.getpid()  # last, so that an interrupted reset is done again

    def watch(self, lease: Lease, emit: Emit) -> None:
        """Renew *lease* from now on, and tell *emit* what happens to it."""
        if self._pid != os.getpid():
            self._reset()  # a fork: the parent's thread and leases stayed in the parent
        first = self._next_beat(lease, lease.acquired_at)
        self._tell = teller_here()
        emit = functools.partial(self._tell, emit)
        with self._lock:
            self._leases.add(lease, emit, first)
            if self._thread is None:
                self._start()
            wake = first < self._wakes_at
        if wake:
            self._bell.ring()

    def forget(self, lease: Lease) -> None:
        """Stop renewing *lease*; an answer that is under way is dropped."""
        if self._pid == os.getpid():
            with self._lock:
                self._leases.drop(lease)

    def note(self, store: Store, duty: Duty) -> None:
        """Write a note to *store*, or pay what is owed to it, within a second, off the caller's path."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._notebook.add(store, duty, self._clock())
            if self._thread is None:
                self._start()

    def flush(self, seconds: float, *, grace: float = 0.0) -> None:
        """
        Wait until all is written, and tell what isn't: the process is about to end.

        For at most *seconds*, or for *grace* seconds if that is longer and something is owed.
        """
        began = self._clock()
        while self.noting and self._clock() < began + self._patience(seconds, grace):
            self._bell.ring()
            pause(0.01)
        if self._pid == os.getpid():
            for owed in self._notebook.owed:
                owed.tell()

    def _patience(self, seconds: float, grace: float) -> float:
        return max(seconds, grace) if self._notebook.owed else seconds

    def stop(self) -> None:
        """
        Write what is to be noted and end the thread, within a moment.

        Called as the interpreter ends: a thread that is in the middle of a renewal
        then can bring it down.
        """
        if self._pid != os.getpid() or self._thread is None:
            return
        self.flush(LINGER)
        with self._lock:
            self._thread = None
        end = self._clock() + LINGER
        while (self._turning or self._end_renewers()) and self._clock() < end:
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
            return len(self._notebook) + self._writing

    @property
    def watching(self) -> int:
        """How many leases are being renewed."""
        return len(self._leases) if self._pid == os.getpid() else 0

    @property
    def running(self) -> bool:
        """Whether the thread lives, in this process."""
        return self._thread is not None and self._pid == os.getpid()

    def _start(self) -> None:
        """
        Start the thread; call with the lock held.

        A soft time limit may strike between the two last lines: the thread finds
        then that it isn't the one on duty, and the next lease starts another.
        """
        if not self._stops_at_exit:
            atexit.register(self.stop)
            self._stops_at_exit = True
        mark = object()
        self._turning = True
        start_thread(functools.partial(self._run, mark))
        self._thread = mark

    def _next_beat(self, lease: Lease, asked_at: float) -> float:
        due = renewal_due(asked_at, lease.ttl, lease.renew_fraction, random.random())
        return min(due, lease.trusted_until)

    # --- in the heartbeat's own thread ---------------------------------------------------

    def _run(self, mark: object) -> None:
        """Beat until there is nothing left to do; an exception is logged and never ends the loop."""
        busy_at = self._clock()
        try:
            while self._on_duty(mark) and not self._stop_if_idle(busy_at):
                if self._turn() or self._leases or self._notebook:
                    busy_at = self._clock()
        finally:
            self._sign_off(mark)

    def _on_duty(self, mark: object) -> bool:
        with self._lock:
            return self._thread is mark

    def _sign_off(self, mark: object) -> None:
        with self._lock:
            self._turning = self._thread not in (mark, None)
            if self._thread is not mark:
                return
            # Something struck between two turns, and ended the thread: another takes its place, if there is work.
            self._thread = None
            self._leases.take_back(self._clock())
            if self._leases or self._notebook:
                self._start()

    def _turn(self) -> int:
        """Wait until leases are due and have them renewed; returns how many were."""
        due: list[Watched] = []
        try:
            due = self._wait_for_due()
            self._beat(due)
            self._give_up_overdue()
            self._hand_out_notes()
        except BaseException as error:  # noqa: BLE001 - nothing ends it quietly, also no SystemExit out of a hook
            self._stumble(error)
        return len(due)

    def _stumble(self, error: BaseException) -> None:
        """After an exception that nobody foresaw: say so, and take up again what it may have left."""
        with self._lock:
            self._leases.take_back(self._clock() + STUMBLE)
        self._complain("The heartbeat stumbled and goes on", error)
        pause(STUMBLE)

    def _complain(self, message: str, error: BaseException) -> None:
        self._tell(functools.partial(logger.error, message, exc_info=error))

    def _wait_for_due(self) -> list[Watched]:
        now = self._clock()
        with self._lock:
            due = self._leases.take_due(now)
            self._wakes_at = self._leases.next_at(now + LINGER)
            sleep = self._wakes_at - now
        if not due:
            self._bell.wait(sleep)
        return due

    def _stop_if_idle(self, busy_at: float) -> bool:
        with self._lock:
            at_work = self._leases or self._notebook or self._writing
            if at_work or self._clock() - busy_at < LINGER:
                return False
            self._leases.clear()
            self._thread = None
            return True

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
            self._writing += len(entries)
        by_store: defaultdict[int, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_store[id(entry[0])].append(entry)
        for notes in by_store.values():
            try:
                self._renewer_of(notes[0][0]).write(notes)
            except RuntimeError as error:
                self._complain("Noting epilogues has to wait", error)
                self._put_back(notes, of=notes)

    def _renewer_of(self, store: Store) -> Renewer:
        # It knows its store, which can't be taken for a later one that has its number.
        found = self._renewers.get(id(store))
        return found or self._renewers.setdefault(id(store), self._new_renewer(store))

    def _new_renewer(self, store: Store) -> Renewer:
        return Renewer(
            functools.partial(self._renew_all, store),
            self._write,
            functools.partial(self._close, store),
            functools.partial(self._complain, "A renewer stumbled and goes on"),
        )

    # --- in a renewer's thread -----------------------------------------------------------

    def _write(self, entries: list[Entry]) -> None:
        failed: list[Entry] = entries
        try:
            failed = write(entries, functools.partial(self._tell, self._notebook.complain))
        except BaseException as error:  # noqa: BLE001 - as in a turn
            self._complain("Noting epilogues broke", error)
        finally:
            self._put_back(failed, of=entries)

    def _put_back(self, failed: list[Entry], *, of: list[Entry]) -> None:
        with self._lock:
            self._notebook.put_back(failed, self._clock())
            self._writing -= len(of)

    def _renew_all(self, store: Store, pairs: list[Watched]) -> None:
        """Renew them in batches, the shortest TTL first."""
        pairs.sort(key=lambda pair: pair[0].ttl)
        try:
            for start in range(0, len(pairs), BATCH):
                self._renew(store, pairs[start : start + BATCH])
        except BaseException as error:  # noqa: BLE001 - as in a turn
            self._stumble(error)

    def _close(self, store: Store) -> None:
        try:
            store.close()
        except Exception as error:  # noqa: BLE001 - a connection that nobody needs any more
            self._complain("A connection couldn't be closed", error)

    def _renew(self, store: Store, pairs: list[Watched]) -> None:
        asked_at = self._clock()
        try:
            answers = store.renew([Renewal(lease.claim, lease.token, lease.since) for lease, _ in pairs])
        except StoreUnavailable as error:
            self._try_again(pairs, error)
        except Exception as error:  # noqa: BLE001 - a broken store must not end the heartbeat, nor pass unseen
            self._complain("A renewal broke", error)
            self._try_again(pairs, error)
        else:
            self._note(pairs, answers, asked_at)

    def _note(self, pairs: Iterable[Watched], answers: list[RenewAnswer], asked_at: float) -> None:
        for (lease, emit), answer in zip(pairs, answers, strict=True):
            match answer:
                case Gone(reason="released"):
                    self.forget(lease)  # our own release came first, and isn't answered yet
                case Gone(reason=reason):
                    lease.lose(reason)
                    self.forget(lease)
                case Kept(reinstated=reinstated):
                    self._note_kept(lease, emit, asked_at, reinstated=reinstated)

    def _note_kept(self, lease: Lease, emit: Emit, asked_at: float, *, reinstated: bool) -> None:
        lag, failures = max(asked_at - lease.beat_due, 0.0), lease.failures
        if not lease.renewed(asked_at):
            self.forget(lease)
            return
        self._again(lease, emit, self._next_beat(lease, asked_at))
        emit(events.Renewed(lease.source, lease.key, lease, lag, reinstated, failures))

    def _try_again(self, pairs: Iterable[Watched], error: Exception) -> None:
        now = self._clock()
        for lease, emit in pairs:
            if lease.lost:
                self.forget(lease)
                continue
            lease.suspect()
            left = lease.trusted_until - now
            failed = events.RenewalFailed(
                lease.source, lease.key, lease, error, max(left, 0.0), lease.failures
            )
            emit(failed)
            pace = min(max(lease.ttl / 20, 0.05), 1.0) * (0.5 + random.random())
            self._again(lease, emit, min(now + pace, lease.trusted_until))

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
