"""A thread on duty: struck at whichever line, the work goes on, and who looks finds out that a thread fell."""

from __future__ import annotations

import functools
import linecache
import sys
import threading
import time

import pytest

from celery_fence.locking import duty as module
from celery_fence.locking.duty import Duty, Fallen, Shift

DEADLINE = 15.0
LOOP = (Duty._run.__code__, Duty._serve.__code__)
LINES = [
    line
    for code in LOOP
    for line in sorted({line for *_, line in code.co_lines() if line and line > code.co_firstlineno})
    if linecache.getline(code.co_filename, line).strip() != "try:"
]
"""Where Python raises what is thrown into the thread: never at a `try:`, which does nothing."""


class Work:
    """Turns that are counted; *breaks* says which one raises what."""

    def __init__(self, breaks=None):
        self.turns = 0
        self.taken_back = 0
        self.complaints = []
        self.breaks = breaks or {}
        self.lock = threading.Lock()
        self.duty = Duty(self.turn, self.take_back, self.complaints.append)

    def turn(self):
        self.turns += 1
        threading.Event().wait(0.001)
        if self.turns in self.breaks:
            raise self.breaks[self.turns]

    def take_back(self):
        self.taken_back += 1

    def look(self):
        """As everybody does who comes by."""
        with self.lock:
            self.duty.mend()

    def goes_on(self, turns=3):
        """Wait until *turns* more have been made, and look meanwhile."""
        wanted, end = self.turns + turns, time.monotonic() + DEADLINE
        while self.turns < wanted:
            assert time.monotonic() < end
            self.look()
            threading.Event().wait(0.002)


@pytest.fixture
def make_work(monkeypatch):
    made = []
    monkeypatch.setattr(module, "STUMBLE", 0.0)
    monkeypatch.setattr(module, "GRACE", 0.2)

    def make(breaks=None):
        made.append(Work(breaks))
        return made[-1]

    yield make
    for work in made:
        work.duty.end()
        end = time.monotonic() + DEADLINE
        while work.duty.turning:
            assert time.monotonic() < end


def raises_once(line, struck):
    """A trace function that throws SystemExit into the thread as it comes to *line* for the first time."""

    def trace(frame, event, arg):
        if frame.f_code not in LOOP:
            return None
        if event == "line" and frame.f_lineno == line and not struck:
            struck.append(line)
            raise SystemExit
        return trace

    return trace


@pytest.mark.parametrize("line", LINES)
def test_struck_at_any_line_of_its_thread_the_work_goes_on_as_soon_as_somebody_looks(
    line, make_work, monkeypatch
):
    """At one line nobody catches it and the thread is gone; then it is found gone, never taken for alive."""
    work, struck, start = make_work({1: ZeroDivisionError()}), [], module.start_thread

    def traced(function):
        sys.settrace(raises_once(line, struck))
        function()

    monkeypatch.setattr(module, "start_thread", lambda function: start(functools.partial(traced, function)))
    work.duty.keep()
    work.goes_on()

    assert struck == [line]
    assert work.complaints
    assert work.taken_back


def test_a_thread_that_lives_is_never_taken_for_a_fallen_one(make_work, monkeypatch):
    work, start, started = make_work(), module.start_thread, []
    monkeypatch.setattr(module, "start_thread", lambda function: (started.append(1), start(function)))
    work.duty.keep()
    while not work.turns:
        pass
    monkeypatch.setattr(module, "GRACE", 0.0)
    work.goes_on(5)

    assert len(started) == 1
    assert work.complaints == []


def test_an_exception_is_told_once_and_its_turn_taken_back(make_work):
    error = SystemExit("thrown into it")
    work = make_work({2: error})
    work.duty.keep()
    work.goes_on(5)

    assert (work.complaints, work.taken_back) == ([error], 1)


def test_it_rests_after_an_exception_so_that_one_which_comes_each_time_does_not_spin(make_work, monkeypatch):
    rests = []
    monkeypatch.setattr(module, "pause", rests.append)
    work = make_work({1: ZeroDivisionError(), 2: ZeroDivisionError()})
    work.duty.keep()
    work.goes_on()

    assert rests == [module.STUMBLE] * 2


def test_struck_while_it_recovers_it_does_a_turn_before_it_tries_again(make_work):
    """Somebody who strikes faster than a line can be logged must not keep the work from being done."""
    work, told, done = make_work({1: ZeroDivisionError()}), [], []

    def struck_each_time(error):
        told.append(error)
        done.append(work.turns)
        if len(told) < 5:
            raise SystemExit

    work.duty._complain = struck_each_time
    work.duty.keep()
    work.goes_on(8)

    assert done == [1, 2, 3, 4, 5]


def test_a_thread_that_fell_is_told_of(make_work):
    work = make_work()
    work.duty._wanted, work.duty._shift = True, fallen()
    assert not work.duty.running
    work.goes_on()

    assert [type(error) for error in work.complaints] == [Fallen]
    assert work.duty.running


def test_who_brings_work_puts_a_thread_in_the_place_of_one_that_fell(make_work):
    work = make_work()
    work.duty._wanted, work.duty._shift = True, fallen()
    work.duty.keep()

    assert work.duty.running


def test_a_thread_that_never_began_is_replaced_when_its_grace_is_over(make_work, monkeypatch):
    work, start = make_work(), module.start_thread
    monkeypatch.setattr(module, "start_thread", lambda function: None)
    work.duty.keep()
    assert work.duty.running
    monkeypatch.setattr(module, "start_thread", start)

    work.goes_on()


def test_one_that_begins_after_it_was_replaced_does_nothing(make_work, monkeypatch):
    work, start, late = make_work(), module.start_thread, []
    monkeypatch.setattr(module, "start_thread", late.append)
    work.duty.keep()
    monkeypatch.setattr(module, "start_thread", start)
    work.goes_on()
    with work.lock:
        work.duty.end()
    while work.duty.turning:
        pass
    turns = work.turns
    late.pop()()

    assert work.turns == turns


def test_a_machine_without_a_thread_to_spare_is_asked_again_by_who_looks(make_work, monkeypatch):
    def none_left(function):
        raise RuntimeError("can't start new thread")

    work = make_work()
    with monkeypatch.context() as full:
        full.setattr(module, "start_thread", none_left)
        with pytest.raises(RuntimeError):
            work.duty.keep()
        assert not work.duty.running

    work.goes_on()


def test_after_its_end_nobody_puts_another_on_duty(make_work):
    work = make_work()
    work.duty.keep()
    work.goes_on()
    work.duty.end()
    while work.duty.turning:
        pass
    turns = work.turns
    work.look()

    assert not work.duty.turning
    assert work.turns == turns


def fallen():
    """The shift of a thread that is gone."""
    shift = Shift()
    shift.begun = True
    return shift
