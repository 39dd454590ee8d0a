"""Stopping a body in the main thread: what was there before, and what is left afterwards."""

from __future__ import annotations

import gc
import signal
import threading

import pytest

from celery_fence.errors import LeaseLost
from celery_fence.task.interrupt import Body, interrupter, interruptible
from celery_fence.task.stopping import signals
from celery_fence.task.stopping.signals import INTERRUPT, Guard

pytestmark = pytest.mark.skipif(INTERRUPT is None, reason="also on CI: this system has no SIGUSR2")


@pytest.fixture(autouse=True)
def guard(monkeypatch):
    """A guard and a signal handler of the test's own."""
    before = signal.getsignal(INTERRUPT)
    guard = Guard()
    monkeypatch.setattr(signals, "_guard", guard)
    yield guard
    signal.signal(INTERRUPT, before)


@pytest.fixture
def lost(make_lease):
    lease = make_lease(key="job:1")
    lease.lose("taken")
    return lease


def test_a_handler_that_was_there_before_is_still_called():
    called = []
    signal.signal(INTERRUPT, lambda signum, frame: called.append(signum))
    with interruptible(Body(), wanted=True):
        signal.raise_signal(INTERRUPT)

    assert called == [INTERRUPT]


def test_the_handler_is_set_once():
    with interruptible(Body(), wanted=True):
        first = signal.getsignal(INTERRUPT)
    with interruptible(Body(), wanted=True):
        assert signal.getsignal(INTERRUPT) == first


def test_a_late_signal_finds_no_body(lost):
    body = Body()
    with interruptible(body, wanted=True):
        stopper = body.stopper
    thread = threading.Thread(target=stopper.strike, args=(lost,))
    thread.start()
    thread.join(5)
    signal.raise_signal(INTERRUPT)

    assert body.stopper is None


def test_a_body_that_was_left_without_a_close_is_not_kept(guard, lost):
    """A soft time limit may strike before the first line that closes it."""
    stopper = signals.BySignal()
    stopper.open()
    assert len(guard._open) == 1
    del stopper
    gc.collect()

    assert len(guard._open) == 0


def test_in_another_thread_no_signal_is_used():
    before, seen = signal.getsignal(INTERRUPT), []

    def run():
        with interruptible(Body(), wanted=True):
            seen.append(signal.getsignal(INTERRUPT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(5)

    assert seen == [before]


def test_the_first_loss_of_a_body_is_the_one_it_is_stopped_for(lost, make_lease):
    later = make_lease(key="job:2")
    later.lose("taken")
    body = Body()
    interrupter(body)(lost)
    interrupter(body)(later)
    with pytest.raises(LeaseLost, match="job:1"), interruptible(body, wanted=True):
        pass
