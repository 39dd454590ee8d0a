"""
The heartbeat: one scheduler per process that renews every lease.

It starts with the first lease, in a thread of the operating system (also under
gevent and eventlet), notices a fork, renews in batches, tries a failed renewal
again until trust ends, and is never ended by an exception. It stops by itself
when it has had nothing to do for a moment. What it has to tell, it tells where other
people's code may run (`celery_fence.locking.green`).

Two threads meet here, told as a timeline: a task's thread *watches* and *forgets*
leases; the heartbeat's thread pops those that are due, asks the store WITHOUT the
lock, and only then notes the answers. A lease that was released in between is
recognised by its state and its answer dropped.
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
from celery_fence.locking.notebook import Entry, Notebook, write
from celery_fence.locking.schedule import Emit, Schedule, Watched
from celery_fence.locking.store import Gone, Kept, Renewal
from celery_fence.locking.trust import renewal_due

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.store import Note, RenewAnswer, Store

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

    def note(self, store: Store, note: Note) -> None:
        """Write *note* to *store* within a second, off the caller's path."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._notebook.add(store, note, self._clock())
            if self._thread is None:
                self._start()

    def flush(self, seconds: float) -> None:
        """Wait until all notes are written, for at most *seconds*: the process is about to end."""
        end = self._clock() + seconds
        while self.noting and self._clock() < end:
            self._bell.ring()
            pause(0.01)

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
        while self._turning and self._clock() < end:
            self._bell.ring()
            pause(0.01)

    @property
    def noting(self) -> int:
        """How many notes are still to be written."""
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
            if self._thread is mark:
                self._thread = None

    def _turn(self) -> int:
        """Wait until leases are due and renew them; returns how many were."""
        due: list[Watched] = []
        try:
            due = self._wait_for_due()
            self._beat(due)
            self._write_notes()
        except BaseException as error:  # noqa: BLE001 - nothing ends it quietly, also no SystemExit out of a hook
            with self._lock:
                self._leases.put_back(due, self._clock() + STUMBLE)
            self._complain("The heartbeat stumbled and goes on", error)
            pause(STUMBLE)
        return len(due)

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
            if self._leases or self._notebook or self._clock() - busy_at < LINGER:
                return False
            self._leases.clear()
            self._thread = None
            return True

    def _beat(self, due: list[Watched]) -> None:
        """Renew all that are still trusted, the shortest TTL first; the others are lost without asking."""
        by_store: defaultdict[int, list[Watched]] = defaultdict(list)
        for lease, emit in sorted(due, key=lambda pair: pair[0].ttl):
            if lease.lost or lease.ended:
                self.forget(lease)
            else:
                by_store[id(lease.renewals)].append((lease, emit))
        for pairs in by_store.values():
            for start in range(0, len(pairs), BATCH):
                self._renew(pairs[0][0].renewals, pairs[start : start + BATCH])

    def _write_notes(self) -> None:
        with self._lock:
            entries = self._notebook.take(self._clock())
            self._writing = len(entries)
        failed: list[Entry] = entries
        try:
            failed = write(entries, functools.partial(self._tell, logger.warning))
        finally:
            with self._lock:
                self._notebook.put_back(failed, self._clock())
                self._writing = 0

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
                case Kept(reinstated=reinstated) if lease.renewed(asked_at):
                    lag = max(asked_at - lease.beat_due, 0.0)
                    self._again(lease, emit, self._next_beat(lease, asked_at))
                    emit(events.Renewed(lease.source, lease.key, lease, lag, reinstated))
                case _:
                    self.forget(lease)

    def _try_again(self, pairs: Iterable[Watched], error: Exception) -> None:
        now = self._clock()
        for lease, emit in pairs:
            if lease.lost:
                self.forget(lease)
                continue
            lease.suspect()
            left = lease.trusted_until - now
            emit(events.RenewalFailed(lease.source, lease.key, lease, error, max(left, 0.0)))
            pace = min(max(lease.ttl / 20, 0.05), 1.0) * (0.5 + random.random())
            self._again(lease, emit, min(now + pace, lease.trusted_until))

    def _again(self, lease: Lease, emit: Emit, at: float) -> None:
        with self._lock:
            self._leases.again(lease, emit, at)


_process_heartbeat: list[Heartbeat] = []


def process_heartbeat() -> Heartbeat:
    """The heartbeat of this process, whatever apps live in it; it holds nothing once the last lease has ended."""
    if not _process_heartbeat:
        _process_heartbeat.append(Heartbeat())
    return _process_heartbeat[0]
