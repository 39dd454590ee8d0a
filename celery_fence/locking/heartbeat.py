"""
The heartbeat: one scheduler per process that renews every lease.

It starts with the first lease, in a thread of the operating system (also under
gevent and eventlet), notices a fork, renews in batches, tries a failed renewal
again until trust ends, and is never ended by an exception. It stops by itself
when it has had nothing to do for a moment. What it has to tell, it tells where other
people's code may run (`celery_fence.locking.green`).

It meets the tasks' threads and the renewers in its agenda (`celery_fence.locking.agenda`). While a
store doesn't answer, its renewer waits and the heartbeat goes on: it notices in time that the trust
in a lease has ended.

Any of the threads may be ended from outside in any instant: whoever comes by puts another thread
in the place of a fallen one (`celery_fence.locking.duty`).
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_fence.locking.agenda import Agenda
from celery_fence.locking.beat import next_beat
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.duty import STUMBLE, Duty
from celery_fence.locking.green import call, teller_here
from celery_fence.locking.native import pause
from celery_fence.locking.renewers import Renewers

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.notebook import Due
    from celery_fence.locking.owed import Owed
    from celery_fence.locking.schedule import Emit, Watched
    from celery_fence.locking.store import Store

logger = logging.getLogger(__name__)

LINGER = 1.0
"""Seconds the idle thread waits for another lease before it ends."""


class Heartbeat:
    """Renews leases until they end. One per process: `process_heartbeat()`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or steady_clock()
        self._stops_at_exit = False
        self._reset()

    def _reset(self) -> None:
        self._agenda = Agenda(self._clock)
        complain = functools.partial(self._complain, "The heartbeat stumbled and goes on")
        self._duty = Duty(self._turn, self._take_back, complain)
        self._busy_at = 0.0
        self._tell = call
        self._renewers = Renewers(
            self._agenda,
            self._clock,
            part=self._part_with,
            look=self._mend,
            complain=self._complain,
            tell=self._tell_now,
        )
        self._pid = os.getpid()  # last, so that an interrupted reset is done again

    @property
    def _is_here(self) -> bool:
        """False in a fork: the thread and the leases stayed in the parent."""
        return self._pid == os.getpid()

    def watch(self, lease: Lease, emit: Emit) -> None:
        """Renew *lease* from now on, and tell *emit* what happens to it."""
        if not self._is_here:
            self._reset()
        self._tell = teller_here()
        first = next_beat(lease, lease.acquired_at)
        self._agenda.watch(lease, functools.partial(self._tell, emit), first, self._start)

    def forget(self, lease: Lease) -> None:
        """Stop renewing *lease*; an answer that is under way is dropped."""
        if self._is_here:
            self._agenda.drop(lease)

    def note(self, store: Store, due: Due) -> None:
        """Write a note to *store* within a second, or pay what is owed to it at once, off the caller's path."""
        if not self._is_here:
            self._reset()
        self._agenda.note(store, due, self._start)

    def owed_for(self, key: str, place: object) -> list[Owed]:
        """What this process owes for *key* at *place*: next to nothing to ask while nothing is owed at all."""
        return [owed for owed in self._owed() if (owed.key, owed.place) == (key, place)]

    def flush(self, seconds: float, *, grace: float = 0.0) -> None:
        """
        Wait until all is written, and tell what isn't: the process is about to end.

        For at most *seconds*, or for *grace* seconds if that is longer and something is owed.
        """
        began = self._clock()
        while self.noting and self._clock() < began + self._patience(seconds, grace):
            self._agenda.bell.ring()
            pause(0.01)
        for owed in self._owed():
            owed.tell()

    def _patience(self, seconds: float, grace: float) -> float:
        return max(seconds, grace) if self._owed() else seconds

    def _owed(self) -> list[Owed]:
        return self._agenda.owed if self._is_here else []

    def stop(self) -> None:
        """
        Write what is to be noted and end the thread, within a moment.

        Called as the interpreter ends: a thread that is in the middle of a renewal
        then can bring it down.
        """
        if not self.running:
            return
        self.flush(LINGER)
        with self._agenda.lock:
            self._duty.end()
        end = self._clock() + LINGER
        while (self._duty.turning or self._renewers.end()) and self._clock() < end:
            self._agenda.bell.ring()
            pause(0.01)

    @property
    def noting(self) -> int:
        """How many notes are still to be written, and calls to be made up for."""
        return self._agenda.noting if self._is_here else 0

    @property
    def watching(self) -> int:
        """How many leases are being renewed."""
        return len(self._agenda.leases) if self._is_here else 0

    @property
    def running(self) -> bool:
        """Whether the thread lives, in this process."""
        return self._is_here and self._duty.running

    def _start(self) -> None:
        """Start the thread where there is none that lives; call with the agenda's lock held."""
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
        self._beat(self._agenda.wait_for_leases(LINGER))
        self._give_up_overdue()
        self._renewers.write(self._agenda.take_notes())
        self._renewers.mend()

    def _ends_idle(self) -> bool:
        with self._agenda.lock:
            now = self._clock()
            if self._agenda:
                self._busy_at = now
            if now - self._busy_at < LINGER:
                return False
            self._agenda.leases.clear()
            self._duty.end()
            return True

    def _beat(self, due: list[Watched]) -> None:
        """Have all renewed that are still trusted; the others are lost without asking."""
        trusted = []
        for lease, emit in due:
            if lease.lost or lease.ended:
                self._part_with(lease, emit)
            else:
                trusted.append((lease, emit))
        self._renewers.renew(trusted)

    def _give_up_overdue(self) -> None:
        """The store hasn't answered yet, and needn't any more: trust in these is over."""
        for lease, emit in self._agenda.overdue():
            if lease.lost:
                self._part_with(lease, emit)

    def _part_with(self, lease: Lease, emit: Emit) -> None:
        """
        Forget a lease that has ended, once its loss is told; tell it where whoever began to was struck.

        A TTL after its trust at the latest: a hub that hears nothing till then never will.
        """
        now = self._clock()
        if self._tells(lease) or now > lease.trusted_until + lease.ttl:
            self.forget(lease)
        else:
            self._agenda.again(lease, emit, now + lease.ttl / 10)

    def _tells(self, lease: Lease) -> bool:
        """Whether a loss, if *lease* is lost, is told to the end."""
        try:
            return lease.tell()
        except Exception as error:  # noqa: BLE001 - as of a hub that is gone: not the affair of the other leases
            self._complain("Telling of a lost lease broke", error)
            return False

    def _take_back(self) -> None:
        self._agenda.take_back(STUMBLE)

    def _complain(self, message: str, error: BaseException) -> None:
        self._tell(functools.partial(logger.error, message, exc_info=error))

    def _tell_now(self, call: Callable[[], object]) -> None:
        self._tell(call)

    # --- in a renewer's thread -----------------------------------------------------------

    def _mend(self) -> None:
        with self._agenda.lock:
            self._duty.mend()


_process_heartbeat: list[Heartbeat] = []


def process_heartbeat() -> Heartbeat:
    """The heartbeat of this process, whatever apps live in it; it holds nothing once the last lease has ended."""
    if not _process_heartbeat:
        _process_heartbeat.append(Heartbeat())
    return _process_heartbeat[0]
