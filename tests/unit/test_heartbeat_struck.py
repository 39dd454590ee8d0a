"""
Exceptions thrown into the heartbeat's threads from outside end neither it nor a renewer, in whichever instant.

What is logged goes into a list here: up to Python 3.12 a thread that is struck as it logs may leave the lock
of `logging` held, which is no affair of the heartbeat's.
"""

from __future__ import annotations

import sys
import threading
import time

import pytest

from celery_fence.locking import duty, renewer
from celery_fence.locking import heartbeat as module
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.duty import Shift
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.store import Note

DEADLINE = 15.0
NAP = threading.Event()
"""Never set: to wait for a moment."""


class Complaints(list):
    """Stands in for the logger."""

    def error(self, message, exc_info):
        self.append((message, exc_info))


@pytest.fixture
def clock():
    return steady_clock()


@pytest.fixture
def complaints(monkeypatch):
    complaints = Complaints()
    monkeypatch.setattr(module, "logger", complaints)
    return complaints


@pytest.fixture
def heartbeat(monkeypatch, complaints):
    monkeypatch.setattr(module, "LINGER", 0.1)
    monkeypatch.setattr(renewer, "LOOK", 0.1)
    monkeypatch.setattr(duty, "STUMBLE", 0.0)
    heartbeat = Heartbeat()
    yield heartbeat
    for lease in tuple(heartbeat._agenda.leases):
        heartbeat.forget(lease)
    heartbeat.stop()


@pytest.fixture
def keep(heartbeat, make_lease):
    """Leases that are renewed ten times a second."""

    def keep(count=1):
        leases = [make_lease(20.0, renew_fraction=0.005) for _ in range(count)]
        for lease in leases:
            heartbeat.watch(lease, lambda event: None)
        return leases

    return keep


def until(fact):
    end = time.monotonic() + DEADLINE
    while not fact():
        assert time.monotonic() < end
        NAP.wait(0.005)


def renewed_again(leases):
    """Wait until each of *leases* has been renewed twice more; nobody calls the heartbeat meanwhile."""
    for _ in range(2):
        before = [lease.trusted_until for lease in leases]
        until(
            lambda before=before: all(
                now.trusted_until > then for now, then in zip(leases, before, strict=True)
            )
        )


def fell(duty):
    """Let *duty* find that its thread is gone; in truth it ends after this turn."""
    last, gone = duty._shift, Shift()
    gone.begun = True
    duty._shift, last.ends = gone, True


def test_a_heartbeat_whose_thread_fell_gets_another_from_its_renewers_without_any_call(
    keep, heartbeat, complaints
):
    leases = keep()
    renewed_again(leases)
    fell(heartbeat._duty)
    renewed_again(leases)

    assert [message for message, _ in complaints] == ["The heartbeat stumbled and goes on"]


def test_a_renewer_that_fell_as_it_asked_gets_another_from_the_heartbeat_and_asks_again(
    keep, heartbeat, store, complaints
):
    """Nothing more is due that the heartbeat would hand to it, and nobody else has the lease."""
    goes_on, asked = threading.Event(), threading.Event()

    def hangs_at_first():
        if not asked.is_set():
            asked.set()
            goes_on.wait(4 * DEADLINE)  # its own answer would come too late

    store.during_renewal = hangs_at_first
    leases = keep()
    assert asked.wait(DEADLINE)
    fell(heartbeat._renewers.of(store)._duty)
    try:
        renewed_again(leases)
    finally:
        goes_on.set()

    assert [message for message, _ in complaints] == ["A renewer stumbled and goes on"]


def test_a_note_that_was_taken_when_something_struck_is_written_all_the_same(heartbeat, store, monkeypatch):
    written, find, struck = threading.Event(), heartbeat._renewers.of, []

    def strikes_once(store):
        if not struck:
            struck.append(store)
            raise SystemExit
        return find(store)

    store.note = lambda notes: written.set()
    monkeypatch.setattr(heartbeat._renewers, "of", strikes_once)
    heartbeat.note(store, Note("k", "delivery", "returned", 60.0))

    assert written.wait(DEADLINE)
    assert struck
    until(lambda: not heartbeat.noting)


@pytest.fixture
def hasty(monkeypatch):
    """Threads take turns a hundred times as often as usual, so that strikes meet them at any line."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 100)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_a_thousand_strikes_leave_every_lease_renewed_in_time(  # noqa: PLR0917 - fixtures
    keep, heartbeat, store, strike, complaints, make_lease
):
    leases, shortest = keep(5), 20.0
    renewed_again(leases)
    bells = heartbeat._agenda.bell, heartbeat._renewers.of(store)._bell
    while len(complaints) < 1000:
        for bell in bells:
            bell.ring()  # or they would only be struck as they wake
        strike()
        NAP.wait(len(complaints) % 7 / 10_000)
        shortest = min(shortest, *(lease.trusted_for for lease in leases))
    renewed_again(leases)

    assert make_lease.losses == []
    assert shortest > 20.0 / 2, "seconds of trust left of 19"
