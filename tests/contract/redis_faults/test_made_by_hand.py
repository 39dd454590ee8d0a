"""What the Redis store does with leases, markers and counters that it hasn't made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence.locking.store import Ending, Gone, Granted, Held, Renewal
from tests.contract.redis_faults.asked import ASKER, ASKERS_COPY, CLAIM, COPY, DELIVERED, NOTE


class TestLeasesMadeByHand:
    @pytest.mark.parametrize("junk", ["hash", "string", "list", "hash with an expiry", "odd numbers"])
    def test_whatever_is_there_keeps_others_out_until_it_is_force_released(self, store, client, prefix, junk):
        lease = store._names.lease(CLAIM.key.encode())
        put(client, lease, junk)

        held = store.acquire(CLAIM)
        assert isinstance(held, Held)
        assert (held.holder.ttl_left is None) == (junk != "hash with an expiry")
        assert isinstance(store.release(CLAIM, 0), Gone)
        assert store.renew([Renewal(CLAIM, 1, 1.0)])[0].reason == "taken"
        store.force_release(CLAIM.key)
        assert isinstance(store.acquire(CLAIM), Granted)

    def test_one_that_never_expires_is_listed_once_somebody_missed_on_it(self, store, client):
        client.hset(store._names.lease(CLAIM.key.encode()), "owner", "by hand")
        store.acquire(CLAIM)

        (holder,) = store.leases()
        assert (holder.key, holder.owner, holder.ttl_left) == (CLAIM.key, "by hand", None)
        assert client.pttl(store._names.of(CLAIM.key.encode())[2]) > 0

    def test_a_miss_decided_for_good_on_one_is_remembered_with_all_its_bytes(self, store, client):
        client.hset(store._names.lease(CLAIM.key.encode()), "owner", b'by "hand"\\ \x00\x1f\xc3\xb6/')
        held = store.acquire(ASKER)

        assert store.acquire(ASKER) == held
        assert store.acquire(ASKERS_COPY).holder == held.holder
        assert held.holder.owner == 'by "hand"\\ \x00\x1f\xf6/'
        assert held.holder.ttl_left is None

    @pytest.mark.parametrize("odd", ["inf", "nan", "-5", "junk", "1e400", ""])
    def test_an_odd_lost_delay_closes_no_lease_for_ever(self, store, client, odd):
        lease = store._names.lease(CLAIM.key.encode())
        client.hset(lease, mapping={"owner": "by hand", "lost_delay": odd})
        client.pexpire(lease, 60_000)

        assert 0 < store.holder(CLAIM.key).ttl_left <= 60

    def test_a_lease_whose_expiry_was_taken_away_is_held_not_closed(self, store, client):
        store.acquire(replace(CLAIM, lost_delay=20.0))
        client.persist(store._names.lease(CLAIM.key.encode()))

        holder = store.holder(CLAIM.key)
        assert (holder.owner, holder.closed, holder.ttl_left) == (CLAIM.owner, False, None)

    def test_a_marker_of_another_type_is_replaced(self, store, client):
        marker = store._names.done(CLAIM.key.encode(), b"d1")
        client.set(marker, "junk")
        grant = store.acquire(DELIVERED)

        assert isinstance(grant, Granted)
        store.release(DELIVERED, grant.token, Ending("returned"))
        assert store.acquire(COPY).ending == Ending("returned")
        client.set(marker, "junk")
        store.note([NOTE])
        assert store.acquire(COPY).noted

    def test_a_counter_of_another_type_is_replaced(self, store, client):
        client.set(store._names.of(CLAIM.key.encode())[1], "junk")

        assert isinstance(store.acquire(CLAIM), Granted)


def put(client, name, junk):
    if junk == "string":
        client.set(name, "locked")
    elif junk == "list":
        client.rpush(name, "a")
    else:
        numbers = (
            {"token": "nan", "since": "-", "beat": "inf", "facts": "[1"} if junk == "odd numbers" else {}
        )
        client.hset(name, mapping={"note": "by hand", **numbers})
    if junk == "hash with an expiry":
        client.pexpire(name, 60_000)
