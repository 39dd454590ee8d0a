"""What is owed for a key is paid before anybody here asks for it again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.locker import Locker, Terms
from celery_fence.stores.memory import MemoryStore
from tests.unit.locker.asked import DELIVERED, RETURNED


def test_a_copy_that_asks_before_the_heartbeat_has_told_of_an_end_finds_it(
    locker, store, clock, down, heartbeat
):
    lease = locker.acquire(DELIVERED, source="the task", terms=Terms(), into=lambda lease: None)
    store.before = down
    locker.release(lease, RETURNED, "d1")
    clock.advance(30.1)
    copy = replace(DELIVERED, owner="copy")
    with pytest.raises(StoreUnavailable):
        locker.acquire(copy, source="the task", terms=Terms(), into=lambda lease: None)
    store.before = None
    answer = locker.acquire(copy, source="the task", terms=Terms(), into=lambda lease: None)

    assert answer.ending == RETURNED
    heartbeat.pay()
    assert heartbeat.noting == 0


def test_what_is_owed_for_one_key_costs_another_no_call(locker, acquire, store, down, monkeypatch):
    lease = locker.acquire(
        replace(DELIVERED, key="job:2"), source=None, terms=Terms(), into=lambda lease: None
    )
    store.before = down
    locker.release(lease, RETURNED, "d1")
    store.before = None
    released = []
    monkeypatch.setattr(store, "release", lambda *asked: released.append(asked))
    acquire()

    assert released == []


def test_what_is_owed_to_one_store_is_paid_to_no_other(  # noqa: PLR0917 - fixtures
    locker, store, down, heartbeat, clock, onlooker, request
):
    """The same key in another place is another key: an end that was written there would be a lie."""
    lease = locker.acquire(DELIVERED, source=None, terms=Terms(), into=lambda lease: None)
    store.before = down
    locker.release(lease, RETURNED, "d1")
    elsewhere = MemoryStore(f"not {request.node.name}", clock=clock)
    other = Locker(elsewhere, elsewhere, lambda _: None, place="elsewhere", heartbeat=heartbeat, clock=clock)
    copy = replace(DELIVERED, owner="copy")
    leases = []
    taken = other.acquire(copy, source=None, terms=Terms(), into=leases.append)

    assert leases == [taken]
    other.release(taken)
    store.before = None
    heartbeat.pay()
    assert onlooker.acquire(copy).ending == RETURNED
