"""Stopping a body in a thread: by an asynchronous exception that never outlives the body."""

from __future__ import annotations

import pickle
import random
import threading
import time

import pytest

from celery_fence.errors import LeaseLost
from celery_fence.task.interrupt import Body, interrupter, interruptible
from celery_fence.task.stopping import threads
from celery_fence.task.stopping.threads import ByException, loss_class

pytestmark = pytest.mark.skipif(not threads.POSSIBLE, reason="also on CI: this Python has no such exception")

DEADLINE = 20.0


@pytest.fixture
def lost(make_lease):
    lease = make_lease(key="job:1")
    lease.lose("taken")
    return lease


class Runner(threading.Thread):
    """Runs a function in a thread and keeps what came of it."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function = function
        self.answer = self.error = None
        self.began = threading.Event()
        self.start()

    def run(self):
        try:
            self.answer = self.function(self)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def wait(self):
        self.join(DEADLINE)
        assert not self.is_alive()
        return self


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def in_a_body(body, work):
    def run(runner):
        with interruptible(body, wanted=True):
            runner.began.set()
            return work()

    return run


def test_a_loop_is_stopped_at_once_with_a_plain_lease_lost(lost):
    body = Body()
    runner = Runner(in_a_body(body, lambda: compute(DEADLINE)))
    runner.began.wait(DEADLINE)
    before = time.monotonic()
    interrupter(body)(lost)
    runner.wait()

    assert time.monotonic() - before < DEADLINE / 2
    assert type(runner.error) is LeaseLost
    assert (runner.error.key, runner.error.token, runner.error.reason) == ("job:1", lost.token, "taken")


def test_a_body_is_stopped_by_the_next_who_tells_where_the_first_was_struck(lost, monkeypatch):
    body, struck = Body(), []

    def struck_once(lease):
        if not struck:
            struck.append(lease)
            raise SystemExit
        return loss_class(lease)

    monkeypatch.setattr(threads, "loss_class", struck_once)
    runner = Runner(in_a_body(body, lambda: compute(DEADLINE / 2)))
    runner.began.wait(DEADLINE)
    with pytest.raises(SystemExit):
        interrupter(body)(lost)
    interrupter(body)(lost)
    runner.wait()

    assert type(runner.error) is LeaseLost


def test_a_call_into_c_is_stopped_when_it_returns(lost):
    body, reached = Body(), []
    called, go_on = threading.Event(), threading.Lock()
    go_on.acquire()

    def works():
        called.set()
        go_on.acquire()  # blocks in C
        reached.append("beyond the call")

    runner = Runner(in_a_body(body, works))
    called.wait(DEADLINE)
    interrupter(body)(lost)
    go_on.release()
    runner.wait()

    assert type(runner.error) is LeaseLost
    assert reached == []


def test_the_body_can_catch_it_as_lease_lost_and_clean_up(lost):
    body, seen = Body(), []

    def works():
        try:
            compute(DEADLINE)
        except LeaseLost as error:
            seen.append((str(error), error.key))
            raise

    runner = Runner(in_a_body(body, works))
    runner.began.wait(DEADLINE)
    interrupter(body)(lost)
    runner.wait()

    assert seen == [(str(lost.loss()), "job:1")]


def test_it_is_struck_once(lost):
    body, cleaned = Body(), []

    def works():
        try:
            compute(DEADLINE)
        finally:
            interrupt = Runner(lambda _: interrupter(body)(lost))
            interrupt.wait()
            compute(0.01)
            cleaned.append(True)

    runner = Runner(in_a_body(body, works))
    runner.began.wait(DEADLINE)
    interrupter(body)(lost)
    runner.wait()

    assert cleaned == [True]


def test_what_is_raised_travels_as_a_plain_lease_lost(lost):
    kind = loss_class(lost)
    copy = pickle.loads(pickle.dumps(kind()))

    assert issubclass(kind, LeaseLost)
    assert type(copy) is LeaseLost
    assert (str(copy), copy.args) == (str(lost.loss()), lost.loss().args)


def test_a_closed_body_is_not_struck(lost, monkeypatch):
    sent = []
    monkeypatch.setattr(threads, "_set_exception", lambda *what: sent.append(what))
    stopper = ByException()
    stopper.open()
    stopper.close()
    Runner(lambda _: stopper.strike(lost)).wait()

    assert sent == []


def test_a_body_does_not_close_between_the_look_and_the_strike(lost, monkeypatch):
    looked, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(threads, "_set_exception", lambda *what: (looked.set(), go_on.wait(DEADLINE)))
    stopper = ByException()
    stopper.open()
    strike = Runner(lambda _: stopper.strike(lost))
    looked.wait(DEADLINE)
    close = Runner(lambda _: stopper.close())
    close.join(0.2)
    waited = close.is_alive()
    go_on.set()
    strike.wait()
    close.wait()

    assert waited


def test_the_body_itself_is_told_by_the_lease_and_not_struck(lost, monkeypatch):
    sent = []
    monkeypatch.setattr(threads, "_set_exception", lambda *what: sent.append(what))
    stopper = ByException()
    stopper.open()
    stopper.strike(lost)

    assert sent == []


def test_a_strike_in_the_lines_that_leave_the_body_is_dropped_and_its_outcome_stands(lost):
    """The exception arrives within `close`: the body has ended."""

    class StruckAtClose(ByException):
        closed = 0

        def close(self):
            self.closed += 1
            if self.closed == 1:
                raise loss_class(lost)
            super().close()

    from celery_fence.task.interrupt import Interruptible

    stopper = StruckAtClose()
    with Interruptible(Body(), stopper):
        pass

    assert stopper.closed == 2


@pytest.mark.parametrize("seed", range(4))
def test_around_the_end_of_the_body_it_lands_inside_or_nowhere(lost, seed):
    """A thousand strikes within microseconds of the end, and after each some of what Celery would do."""
    chance = random.Random(seed)
    rounds, outcomes = 250, []
    bodies = [Body() for _ in range(rounds)]
    turn = [threading.Event() for _ in range(rounds)]

    def worker(_):
        for body, mine in zip(bodies, turn, strict=True):
            try:
                with interruptible(body, wanted=True):
                    mine.set()
                    sum(range(chance.randrange(2000)))
            except LeaseLost:
                outcomes.append("stopped")
            else:
                outcomes.append("ended")
            sum(range(chance.randrange(500)))  # Celery's code: what lands here ends the loop

    runner = Runner(worker)
    for body, began in zip(bodies, turn, strict=True):
        began.wait(DEADLINE)
        interrupter(body)(lost)
    runner.wait()

    assert runner.error is None
    assert len(outcomes) == rounds
