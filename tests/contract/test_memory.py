from __future__ import annotations

import gc
from itertools import count

import pytest

from celery_fence.locking.store import Claim, Ending, Granted, Note, Released
from celery_fence.stores import from_url
from celery_fence.stores.memory import MemoryStore
from celery_fence.testing.clock import FakeClock
from celery_fence.testing.contract import StoreContract

names = count()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    return MemoryStore(f"contract-{next(names)}", clock=clock, counter_retention=100)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, store):
        return store

    @pytest.fixture
    def pass_time(self, clock):
        return clock.advance

    @pytest.fixture
    def lose_everything(self, store):
        return store.flush

    @pytest.fixture
    def copy_data(self, store):
        def copy():
            kinds = ("leases", "counters", "markers", "records")
            copies = {kind: getattr(store._space, kind).copy() for kind in kinds}
            return lambda: [setattr(store._space, kind, data) for kind, data in copies.items()]

        return copy


def test_stores_of_one_url_see_the_same_leases_and_others_don_t():
    one, same = from_url("memory://one"), from_url("memory://one")
    others = [from_url("memory://"), from_url("memory://two"), from_url("memory://one", prefix="other")]

    one.acquire(Claim("k", "o", 5.0))

    assert same.holder("k") is not None
    assert [store.holder("k") for store in others] == [None, None, None]


def test_nothing_is_left_of_a_url_that_nobody_uses():
    store = from_url("memory://left")
    store.acquire(Claim("k", "o", 5.0))
    del store
    gc.collect()

    assert from_url("memory://left").holder("k") is None


def test_idle_keys_leave_nothing_after_the_retention_time(store, clock):
    for number in range(100):
        claim = Claim(f"idle:{number}", "o", 5.0)
        store.release(claim, store.acquire(claim).token)
        store.acquire(Claim(f"killed:{number}", "o", 5.0))
    clock.advance(101)
    store.acquire(Claim("k", "o", 5.0))

    assert set(store._space.counters) == {"k"}
    assert set(store._space.leases) == {"k"}


def test_ended_deliveries_leave_nothing_after_their_retention(store, clock):
    for number in range(100):
        claim = Claim("k", f"o{number}", 5.0, delivery=f"d{number}", retention=50)
        store.release(claim, store.acquire(claim).token, Ending("returned", b"1"))
        store.note([Note("k", f"n{number}", "returned", 50)])
    store.acquire(Claim("k", "o", 5.0))
    assert len(store._space.markers) == 200

    clock.advance(51)
    store.acquire(Claim("k", "o", 5.0))

    assert store._space.markers == {}


def test_without_a_delivery_nothing_is_kept(store):
    claim = Claim("k", "o", 5.0)
    store.release(claim, store.acquire(claim).token, Ending("returned", b"1"))
    store.note([Note("k", "", "returned", 50)])

    assert store._space.markers == {}


def test_a_release_repeated_after_the_counter_was_lost_leaves_what_is_remembered(store):
    claim = Claim("k", "o", 5.0, delivery="d")
    grant = store.acquire(claim)
    store.release(claim, grant.token, Ending("returned", b"1"))
    store._space.counters.clear()

    assert store.release(claim, grant.token, Ending("failed")) == Released()
    assert store.acquire(Claim("k", "copy", 5.0, delivery="d")).ending == Ending("returned", b"1")


def test_a_closed_lease_is_not_swept_away_before_its_key_opens(store, clock):
    store.acquire(Claim("closed", "o", 5.0, lost_delay=20.0))
    clock.advance(6)
    store.acquire(Claim("k", "o", 5.0))
    assert store.holder("closed").closed

    clock.advance(20)
    store.acquire(Claim("k", "p", 5.0))
    assert set(store._space.leases) == {"k"}


def test_tokens_grow_when_the_clock_steps_back(store, clock):
    claim = Claim("k", "o", 5.0)
    first = store.acquire(claim)
    store.release(claim, first.token)
    clock.advance(-50)

    assert store.acquire(Claim("k", "p", 5.0)).token == first.token + 1


def test_its_own_clock_is_the_wall_clock():
    import time

    before = time.time()
    answer = MemoryStore("wall").acquire(Claim("k", "o", 5.0))

    assert isinstance(answer, Granted)
    assert before - 1 <= answer.since <= time.time() + 1
