"""A locker over a store whose calls can be made to fail, before or after they took effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim, Gone
from celery_fence.stores.memory import MemoryStore


class Broken(MemoryStore):
    """A memory store whose calls can be made to fail, before or after they took effect."""

    before = after = between = None
    took = 0.0

    def _through(self, call, *args):
        if self.before:
            raise self.before
        answer = call(*args)
        self._clock.advance(self.took)
        if self.after:
            raise self.after
        return answer

    def acquire(self, *asked):
        return self._through(super().acquire, *asked)

    def release(self, *asked):
        if self.between is None:
            return self._through(super().release, *asked)
        super().release(*asked)  # carried out, and its reply is lost
        between, self.between = self.between, None
        between()
        answer = super().release(*asked)
        return replace(answer, repeated=True) if isinstance(answer, Gone) else answer

    def renew(self, *asked):
        return self._through(super().renew, *asked)


@pytest.fixture
def store(clock, request):
    return Broken(request.node.name, clock=clock)


@pytest.fixture
def onlooker(clock, request, store):
    """The same leases, seen through a store that works."""
    return MemoryStore(request.node.name, clock=clock)


@pytest.fixture
def told():
    return []


@pytest.fixture
def locker(store, heartbeat, clock, told):
    return Locker(store, store, told.append, heartbeat=heartbeat, clock=clock)


@pytest.fixture
def acquire(locker):
    def acquire(owner="me", *, ttl=30.0, into=lambda lease: None, **given):
        return locker.acquire(
            Claim("job:1", owner, ttl),
            source="the task",
            terms=given.pop("terms", Terms()),
            into=into,
            **given,
        )

    return acquire
