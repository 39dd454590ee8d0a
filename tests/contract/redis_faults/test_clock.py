"""What the Redis store does when the server's clock was ahead, or steps back."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from celery_fence.locking.store import Claim, Ending, Kept, Renewal
from tests.contract.redis_faults.asked import ASKER, CLAIM, COPY, DELIVERED


class TestTokensAheadOfTheClock:
    """As after a step of the server's clock back: tokens then grow by one."""

    @pytest.fixture
    def grant(self, store, client):
        client.hset(store._names.of(CLAIM.key.encode())[1], "token", 2**52)
        return store.acquire(CLAIM)

    def successor_of(self, store):
        return store.acquire(Claim(CLAIM.key, "successor", 30.0)).token

    def test_a_token_is_the_last_one_and_one_more(self, grant):
        assert grant.token == 2**52 + 1

    def test_they_grow_after_a_release(self, store, grant):
        store.release(CLAIM, grant.token)

        assert self.successor_of(store) == grant.token + 1

    def test_they_grow_after_an_expiry(self, store, client, grant):
        client.pexpire(store._names.lease(CLAIM.key.encode()), 0)

        assert self.successor_of(store) == grant.token + 1

    def test_they_grow_after_a_release_although_the_counter_was_evicted(self, store, client, grant):
        client.delete(store._names.of(CLAIM.key.encode())[1])
        store.release(CLAIM, 0)

        assert self.successor_of(store) == grant.token + 1

    def test_they_grow_after_the_release_of_a_lost_lease(self, store, client, grant):
        client.flushall()
        store.release(CLAIM, grant.token)

        assert self.successor_of(store) == grant.token + 1

    def test_they_grow_after_a_force_release_although_the_counter_was_evicted(self, store, client, grant):
        client.delete(store._names.of(CLAIM.key.encode())[1])
        store.force_release(CLAIM.key)

        assert self.successor_of(store) == grant.token + 2

    def test_they_grow_after_a_repeated_acquire_that_found_no_counter(self, store, client, grant):
        client.delete(store._names.of(CLAIM.key.encode())[1])
        assert store.acquire(CLAIM) == grant
        client.pexpire(store._names.lease(CLAIM.key.encode()), 0)

        assert self.successor_of(store) == grant.token + 1


class TestAClockSteppedBack:
    """What was granted while the clock was ahead has the step on top of its TTL."""

    @pytest.mark.parametrize("lost_delay", [0.0, 5.0])
    def test_a_dead_holder_keeps_the_key_for_a_ttl_from_the_next_question_and_no_longer(
        self, store, client, lost_delay
    ):
        dead = Claim(CLAIM.key, "dead", 30.0, lost_delay=lost_delay)
        store.acquire(dead)
        lease = store._names.lease(CLAIM.key.encode())
        client.pexpire(lease, 3_600_000)
        held = store.acquire(ASKER)

        assert 29 < held.holder.ttl_left <= 30
        assert not held.holder.closed
        assert 29_000 < client.pttl(lease) <= 30_000 + 1000 * lost_delay
        assert client.zscore(store._names.of(CLAIM.key.encode())[2], CLAIM.key) / 1000 < time.time() + 60

    def test_an_ended_delivery_grows_old_all_the_same(self, store, client):
        granted = store.acquire(DELIVERED)
        store.release(DELIVERED, granted.token, Ending("failed"))
        marker = store._names.done(CLAIM.key.encode(), b"d1")
        client.hset(marker, "at", int((time.time() + 3600) * 1_000_000))
        before = server_time_us(client)
        assert store.acquire(COPY).age == 0.0
        counted_from, asked_at = server_time_us(client), server_time_us(client)
        age_us = round(1_000_000 * store.acquire(replace(COPY, owner="another copy")).age)

        assert 0 < asked_at - counted_from <= age_us <= server_time_us(client) - before

    def test_a_live_holder_keeps_its_lease(self, store, client):
        granted = store.acquire(CLAIM)
        client.pexpire(store._names.lease(CLAIM.key.encode()), 3_600_000)
        store.acquire(ASKER)

        assert store.renew([Renewal(CLAIM, granted.token, granted.since)]) == [Kept()]
        assert store.holder(CLAIM.key).owner == CLAIM.owner

    def test_a_lease_made_by_hand_stays_as_long_as_it_was_made_to(self, store, client):
        lease = store._names.lease(CLAIM.key.encode())
        client.hset(lease, "owner", "a person")
        client.pexpire(lease, 3_600_000)
        held = store.acquire(ASKER)

        assert held.holder.ttl_left > 3000


def server_time_us(client):
    seconds, microseconds = client.time()
    return 1_000_000 * seconds + microseconds
