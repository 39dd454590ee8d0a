"""The sleep that another thread can cut short."""

from __future__ import annotations

import threading
import time

import pytest

from celery_fence.locking.native import Wakeable, start_thread


def test_a_ring_before_the_sleep_cuts_it_short():
    bell = Wakeable()
    bell.ring()
    before = time.monotonic()
    bell.wait(30)

    assert time.monotonic() - before < 10


def test_a_ring_during_the_sleep_cuts_it_short():
    bell, woken = Wakeable(), threading.Event()
    start_thread(lambda: (bell.wait(30), woken.set()))
    bell.ring()

    assert woken.wait(10)


def test_many_rings_are_one():
    bell = Wakeable()
    for _ in range(3):
        bell.ring()
    bell.wait(0)
    before = time.monotonic()
    bell.wait(0.05)

    assert time.monotonic() - before >= 0.04


def test_a_ring_at_the_very_end_of_the_sleep_breaks_nothing():
    """Sleeper: its time is over - another: rings - sleeper: notes that it is awake - another: rings again."""
    bell = Wakeable()

    class RungAtItsEnd:
        def __init__(self, lock):
            self.lock = lock
            self.release = lock.release
            self.locked = lock.locked

        def acquire(self, *args, **kwargs):
            answer = self.lock.acquire(*args, **kwargs)
            if not answer and kwargs.get("timeout") is not None:
                bell.ring()
            return answer

    bell._bell = RungAtItsEnd(bell._bell)
    bell.wait(0)
    bell.ring()
    before = time.monotonic()
    bell.wait(30)

    assert time.monotonic() - before < 10


def test_a_sleeper_that_was_thrown_out_as_it_woke_is_woken_by_the_next_ring():
    """Another: rings - sleeper: wakes, and SystemExit is thrown into it - another: rings again."""
    bell = Wakeable()

    class ThrownOut:
        def __init__(self, lock):
            self.lock = lock
            self.release = lock.release
            self.locked = lock.locked

        def acquire(self, **kwargs):
            self.lock.acquire(**kwargs)
            raise SystemExit

    bell.ring()
    whole, bell._bell = bell._bell, ThrownOut(bell._bell)
    with pytest.raises(SystemExit):
        bell.wait(0)
    bell._bell = whole
    bell.ring()
    before = time.monotonic()
    bell.wait(30)

    assert time.monotonic() - before < 10
