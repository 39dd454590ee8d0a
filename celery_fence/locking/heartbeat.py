"""
The heartbeat: one scheduler per process that renews every lease.

It starts with the first lease, in a thread of the operating system (also under
gevent and eventlet), notices a fork, renews in batches, tries a failed renewal
again until trust ends, and is never ended by an exception. It stops by itself
when it has had nothing to do for a moment.

Two threads meet here, told as a timeline: a task's thread *watches* and *forgets*
leases; the heartbeat's thread pops those that are due, asks the store WITHOUT the
lock, and only then notes the answers. A lease that was released in between is
recognised by its state and its answer dropped.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.native import Wakeable, new_lock, pause, start_thread
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

Emit = Callable[[events.Event], None]


class Heartbeat:
    """Renews leases until they end. One per process: `process_heartbeat()`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or steady_clock()
        self._reset()

    def _reset(self) -> None:
        self._lock = new_lock()
        self._bell = Wakeable()
        self._thread: object | None = None
        self._wakes_at = 0.0
        self._due: list[tuple[float, int, Lease, Emit]] = []
        self._order = itertools.count()
        self._live: set[Lease] = set()
        self._pid = os.getpid()  # last, so that an interrupted reset is done again

    def watch(self, lease: Lease, emit: Emit) -> None:
        """Renew *lease* from now on, and tell *emit* what happens to it."""
        if self._pid != os.getpid():
            self._reset()  # a fork: the parent's thread and leases stayed in the parent
        first = self._next_beat(lease, lease.acquired_at)
        with self._lock:
            self._live.add(lease)
            self._push(first, lease, emit)
            if self._thread is None:
                self._start()
            wake = first < self._wakes_at
        if wake:
            self._bell.ring()

    def forget(self, lease: Lease) -> None:
        """Stop renewing *lease*; an answer that is under way is dropped."""
        if self._pid == os.getpid():
            with self._lock:
                self._live.discard(lease)
                if len(self._due) > 64 + 4 * len(self._live):
                    self._due = [entry for entry in self._due if entry[2] in self._live]
                    heapq.heapify(self._due)

    @property
    def watching(self) -> int:
        """How many leases are being renewed."""
        return len(self._live) if self._pid == os.getpid() else 0

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
        mark = object()
        start_thread(functools.partial(self._run, mark))
        self._thread = mark

    def _push(self, at: float, lease: Lease, emit: Emit) -> None:
        lease.beat_due = at
        heapq.heappush(self._due, (at, next(self._order), lease, emit))

    def _next_beat(self, lease: Lease, asked_at: float) -> float:
        due = renewal_due(asked_at, lease.ttl, lease.renew_fraction, random.random())
        return min(due, lease.trusted_until)

    # --- in the heartbeat's own thread ---------------------------------------------------

    def _run(self, mark: object) -> None:
        """Beat until there is nothing left to do; an exception is logged and never ends the loop."""
        busy_at = self._clock()
        try:
            while self._on_duty(mark) and not self._stop_if_idle(busy_at):
                if self._turn() or self._live:
                    busy_at = self._clock()
        finally:
            self._sign_off(mark)

    def _on_duty(self, mark: object) -> bool:
        with self._lock:
            return self._thread is mark

    def _sign_off(self, mark: object) -> None:
        with self._lock:
            if self._thread is mark:
                self._thread = None

    def _turn(self) -> int:
        """Wait until leases are due and renew them; returns how many were."""
        due: list[tuple[Lease, Emit]] = []
        try:
            due = self._wait_for_due()
            self._beat(due)
        except BaseException:  # also a SystemExit out of somebody's hook: nothing ends the heartbeat quietly
            self._put_back(due)
            logger.exception("The heartbeat stumbled and goes on")
            pause(STUMBLE)
        return len(due)

    def _put_back(self, due: list[tuple[Lease, Emit]]) -> None:
        """Schedule again what an exception left unscheduled."""
        soon = self._clock() + STUMBLE
        with self._lock:
            scheduled = {entry[2] for entry in self._due}
            for lease, emit in due:
                if lease in self._live and lease not in scheduled:
                    self._push(soon, lease, emit)

    def _wait_for_due(self) -> list[tuple[Lease, Emit]]:
        now = self._clock()
        with self._lock:
            due = self._pop_due(now)
            self._wakes_at = min(self._due[0][0], now + LINGER) if self._due else now + LINGER
            sleep = self._wakes_at - now
        if not due:
            self._bell.wait(sleep)
        return due

    def _pop_due(self, now: float) -> list[tuple[Lease, Emit]]:
        """All that are due, and with them those that will be in a moment: one call for many."""
        due: list[tuple[Lease, Emit]] = []
        while self._due and self._due[0][0] <= now + (self._due[0][2].ttl / 50 if due else 0.0):
            _, _, lease, emit = heapq.heappop(self._due)
            if lease in self._live:
                due.append((lease, emit))
        return due

    def _stop_if_idle(self, busy_at: float) -> bool:
        with self._lock:
            if self._live or self._clock() - busy_at < LINGER:
                return False
            self._due.clear()
            self._thread = None
            return True

    def _beat(self, due: list[tuple[Lease, Emit]]) -> None:
        """Renew all that are still trusted, the shortest TTL first; the others are lost without asking."""
        by_store: defaultdict[int, list[tuple[Lease, Emit]]] = defaultdict(list)
        for lease, emit in sorted(due, key=lambda pair: pair[0].ttl):
            if lease.lost or lease.ended:
                self.forget(lease)
            else:
                by_store[id(lease.renewals)].append((lease, emit))
        for pairs in by_store.values():
            for start in range(0, len(pairs), BATCH):
                self._renew(pairs[0][0].renewals, pairs[start : start + BATCH])

    def _renew(self, store: Store, pairs: list[tuple[Lease, Emit]]) -> None:
        asked_at = self._clock()
        try:
            answers = store.renew([Renewal(lease.claim, lease.token, lease.since) for lease, _ in pairs])
        except StoreUnavailable as error:
            self._try_again(pairs, error)
        except Exception as error:  # a broken store must not end the heartbeat, nor pass unseen
            logger.exception("A renewal broke")
            self._try_again(pairs, error)
        else:
            self._note(pairs, answers, asked_at)

    def _note(self, pairs: Iterable[tuple[Lease, Emit]], answers: list[RenewAnswer], asked_at: float) -> None:
        for (lease, emit), answer in zip(pairs, answers, strict=True):
            match answer:
                case Gone(reason=reason):
                    lease.lose(reason)
                    self.forget(lease)
                case Kept(reinstated=reinstated) if lease.renewed(asked_at):
                    lag = max(asked_at - lease.beat_due, 0.0)
                    self._schedule(self._next_beat(lease, asked_at), lease, emit)
                    emit(events.Renewed(lease.source, lease.key, lease, lag, reinstated))
                case _:
                    self.forget(lease)

    def _try_again(self, pairs: Iterable[tuple[Lease, Emit]], error: Exception) -> None:
        now = self._clock()
        for lease, emit in pairs:
            lease.suspect()
            left = lease.trusted_until - now
            emit(events.RenewalFailed(lease.source, lease.key, lease, error, max(left, 0.0)))
            pace = min(max(lease.ttl / 20, 0.05), 1.0) * (0.5 + random.random())
            self._schedule(min(now + pace, lease.trusted_until), lease, emit)

    def _schedule(self, at: float, lease: Lease, emit: Emit) -> None:
        with self._lock:
            if lease in self._live:
                self._push(at, lease, emit)


_process_heartbeat: list[Heartbeat] = []


def process_heartbeat() -> Heartbeat:
    """The heartbeat of this process, whatever apps live in it; it holds nothing once the last lease has ended."""
    if not _process_heartbeat:
        _process_heartbeat.append(Heartbeat())
    return _process_heartbeat[0]
