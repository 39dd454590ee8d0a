"""What the tests of the locking core share: a clock that stands still, a heartbeat beaten by hand, a store that obeys."""

from __future__ import annotations

import itertools

import pytest

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.lease import Lease
from celery_fence.locking.store import Claim, Granted, Kept, Released
from celery_fence.testing.clock import FakeClock


class HandBeaten(Heartbeat):
    """A heartbeat without its thread: it beats when the test says so."""

    def __init__(self, clock):
        super().__init__(clock)
        self._start = lambda: None

    def beat(self) -> int:
        """What the thread would do at this moment; returns how many leases were due."""
        due = self._pop_due(self._clock())
        if due:
            self._beat(due)
        return len(due)


class ObedientStore:
    """A store that answers what the test has put on it, and remembers what it was asked."""

    description = "obedient://"

    def __init__(self):
        self.renewal = Kept()
        self.calls = []
        self.during_renewal = lambda: None

    def renew(self, renewals):
        self.calls.append([each.claim.key for each in renewals])
        self.during_renewal()
        if isinstance(self.renewal, Exception):
            raise self.renewal
        return [self.renewal] * len(renewals)

    def release(self, claim, token):
        return Released()


@pytest.fixture
def clock():
    return FakeClock(1000.0)


@pytest.fixture
def heartbeat(clock):
    return HandBeaten(clock)


@pytest.fixture
def store():
    return ObedientStore()


@pytest.fixture
def down():
    return StoreUnavailable("the store is out of reach")


@pytest.fixture
def make_lease(clock, store):
    """Leases as the locker makes them, asked for now; what they tell when they are lost lands in ``.losses``."""
    numbers = itertools.count(1)

    def make(ttl=30.0, *, key=None, **given):
        number = next(numbers)
        facts = {
            "asked_at": clock(),
            "clock": clock,
            "store": store,
            "renewals": store,
            "source": None,
            "renew_fraction": 1 / 3,
            "max_hold": None,
            "on_lost": lambda lease, reason: make.losses.append((lease.key, reason)),
        }
        claim = Claim(key or f"job:{number}", f"owner-{number}", ttl)
        return Lease(claim, Granted(number, clock()), **{**facts, **given})

    make.losses = []
    return make
