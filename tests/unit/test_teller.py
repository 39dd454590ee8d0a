"""What the heartbeat's threads notice is told in a thread that they don't wait for, however long that takes."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from celery_fence.locking import teller as module
from celery_fence.locking.duty import Duty
from celery_fence.locking.teller import Teller, aside, process_teller

DEADLINE = 15.0


@pytest.fixture
def told():
    return []


@pytest.fixture
def teller(monkeypatch):
    monkeypatch.setattr(module, "LINGER", 0.05)
    return Teller()


@pytest.fixture
def hang(teller):
    """Have the teller wait in a receiver that hangs, until it is let go."""
    goes_on, hangs = threading.Event(), threading.Event()

    def receiver():
        hangs.set()
        goes_on.wait(DEADLINE)

    def hang():
        teller.tell(receiver)
        assert hangs.wait(DEADLINE)

    hang.let_go = goes_on.set
    yield hang
    goes_on.set()


def test_things_are_told_in_order(teller, told):
    for number in range(100):
        teller.tell(told.append, number)
    teller.finish(DEADLINE)

    assert told == list(range(100))


def test_who_has_something_to_tell_waits_for_nobody(teller, told, hang):
    hang()
    teller.tell(told.append, "later")
    before = list(told)
    hang.let_go()
    teller.finish(DEADLINE)

    assert (before, told) == ([], ["later"])


def test_what_breaks_ends_nothing_and_is_not_told_again(teller, told, caplog):
    def receiver():
        told.append("once")
        raise SystemExit

    teller.tell(receiver)
    teller.tell(told.append, "next")
    teller.finish(DEADLINE)

    assert told == ["once", "next"]
    assert [each.message for each in caplog.records] == ["Telling of a lease broke, and goes on"]


def test_after_an_idle_moment_its_thread_ends_and_another_tells_what_comes(teller, told):
    ended = threading.Event()
    teller._duty.end = lambda end=teller._duty.end: (end(), ended.set())
    teller.tell(told.append, 1)
    assert ended.wait(DEADLINE)
    teller.tell(told.append, 2)
    teller.finish(DEADLINE)

    assert told == [1, 2]


def test_a_receiver_that_hangs_for_ever_fills_no_memory_and_is_told_of_when_it_goes_on(
    teller, told, hang, monkeypatch, caplog
):
    monkeypatch.setattr(module, "ROOM", 2)
    hang()
    for number in range(5):
        teller.tell(told.append, number)
    hang.let_go()
    teller.finish(DEADLINE)

    assert told == [0, 1]
    assert [(each.levelno, each.args) for each in caplog.records] == [(logging.WARNING, (3,))]


def test_a_machine_without_a_thread_to_spare_tells_it_with_the_next_thing(teller, told, monkeypatch):
    def none_left(function):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("celery_fence.locking.duty.start_thread", none_left)
        teller.tell(told.append, 1)
    teller.tell(told.append, 2)
    teller.finish(DEADLINE)

    assert told == [1, 2]


def test_its_thread_ends_with_the_process(teller, told, monkeypatch):
    monkeypatch.setattr(module, "LINGER", 3600.0)
    teller.tell(told.append, 1)
    teller.finish(DEADLINE)
    teller.end(DEADLINE)

    assert not teller._duty.turning
    assert told == [1]


def test_a_process_that_ends_waits_for_it_but_not_for_ever(teller, hang):
    hang()
    teller.finish(0.05)

    assert teller._is_busy()


def test_only_a_thread_on_duty_has_it_told_by_another(told):
    done = threading.Event()

    def turn():
        duty.end()
        aside(lambda: (told.append(threading.get_ident()), done.set()))
        told.append(threading.get_ident())

    aside(lambda: told.append(threading.get_ident()))
    duty = Duty(turn, lambda: None, lambda error: None)
    duty.keep()
    assert done.wait(DEADLINE)
    process_teller().finish(DEADLINE)

    assert told[0] == threading.get_ident()
    assert len(set(told)) == 3


def test_a_fork_has_a_teller_of_its_own():
    parents = process_teller()
    child = os.fork()
    if child == 0:
        os._exit(int(process_teller() is parents))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
