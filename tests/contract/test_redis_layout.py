"""What the Redis store leaves in Redis."""

from __future__ import annotations

import pytest

from celery_fence.locking.store import Claim, Facts, Renewal
from celery_fence.stores import from_url
from celery_fence.stores.redis.names import Names

KEY = "tenant:7:sync"


def test_a_lease_its_counter_and_its_index_are_named_as_documented(client, server):
    store = from_url(server.url)
    store.acquire(Claim(KEY, "o", 30.0, Facts(task_name="billing.sync")))

    assert sorted(client.keys()) == [
        b"fence:{b44}:expiries",
        b"fence:{b44}:lease:tenant:7:sync",
        b"fence:{b44}:token:tenant:7:sync",
    ]
    lease = client.hgetall("fence:{b44}:lease:tenant:7:sync")
    assert set(lease) == {b"layout", b"owner", b"token", b"since", b"beat", b"ttl", b"facts"}
    assert lease[b"layout"] == b"1"
    store.close()


@pytest.mark.parametrize("key", ["7", "a{b}c", "}{", "{}", "{b01}"])
def test_braces_in_a_key_neither_make_nor_break_the_hash_tag(key):
    for name in Names("fence").of(key.encode()):
        tag = name.partition(b"{")[2].partition(b"}")[0]
        assert len(tag) == 3
        assert tag.startswith(b"b")


def test_no_two_names_are_equal():
    """Keys made of our own words would collide if the kind stood behind the key."""
    parts = ["x", "lease:x", "token:x", "x:token", "x:lease", "expiries", ":", "", "token:", "{b00}:lease:x"]
    names = [name for key in parts for name in Names("fence").of(key.encode())[:2]]
    names += set(Names("fence").indexes())

    assert len(set(names)) == 2 * len(parts) + 64


def test_after_a_release_only_the_counter_is_left_and_it_expires(store, client):
    claim = Claim(KEY, "o", 30.0)
    store.release(claim, store.acquire(claim).token)

    (left,) = client.keys()
    assert b":token:" in left
    assert 604_700_000 < client.pttl(left) <= 604_800_000


def test_after_a_force_release_only_the_counter_is_left_and_it_expires(store, client):
    store.acquire(Claim(KEY, "o", 30.0))
    client.persist(store._names.of(KEY.encode())[1])
    store.force_release(KEY)

    (left,) = client.keys()
    assert b":token:" in left
    assert client.pttl(left) > 0


def test_after_a_lease_was_put_back_nothing_stays_for_ever(store, client):
    claim = Claim(KEY, "o", 30.0)
    grant = store.acquire(claim)
    client.flushall()
    store.renew([Renewal(claim, grant.token, grant.since)])

    assert [client.pttl(name) > 0 for name in client.scan_iter()] == [True] * 3


def test_after_a_killed_holder_nothing_stays_for_ever(store, client):
    store.acquire(Claim(KEY, "o", 30.0))

    assert [client.pttl(name) > 0 for name in client.scan_iter()] == [True] * 3


def test_the_counter_is_kept_for_the_retention_time_and_no_longer(client, server, prefix):
    store = from_url(server.url, prefix=prefix, counter_retention=5)
    claim = Claim(KEY, "o", 30.0)
    grant = store.acquire(claim)
    counter = store._names.of(KEY.encode())[1]
    assert 0 < client.pttl(counter) <= 5000

    client.pexpire(counter, 100)
    store.release(claim, grant.token)
    assert 4000 < client.pttl(counter) <= 5000


def test_the_index_outlives_the_longest_lease_in_it(store, client):
    """Two keys of one bucket: the short lease must not take the index away from the long one."""
    index = store._names.of(KEY.encode())[2]
    sister = next(
        key for number in range(1000) if store._names.of((key := f"k{number}").encode())[2] == index
    )
    store.acquire(Claim(KEY, "o", 500.0))
    store.acquire(Claim(sister, "o", 1.0))

    assert client.pttl(index) >= 499_000


def test_entries_of_the_dead_are_trimmed_by_the_next_grant_in_the_bucket(store, client):
    index = store._names.of(KEY.encode())[2]
    client.zadd(index, {"long dead": 1})
    claim = Claim(KEY, "o", 30.0)
    grant = store.acquire(claim)

    assert client.zrange(index, 0, -1) == [KEY.encode()]

    store.renew([Renewal(claim, grant.token, grant.since)])
    store.release(claim, grant.token)
    assert not client.exists(index)


def test_ten_thousand_leases_are_listed_without_keys_or_scan(store, client):
    number_of_leases = 10_000
    names = store._names
    # Put there by one pipeline: ten thousand questions would only cost time.
    with client.pipeline(transaction=False) as pipe:
        for number in range(number_of_leases):
            lease, _, index = names.of(f"k{number}".encode())
            pipe.hset(lease, mapping={"owner": f"o{number}", "token": number + 1})
            pipe.pexpire(lease, 60_000)
            pipe.zadd(index, {f"k{number}": 9e15})
        pipe.execute()
    client.config_resetstat()

    owners = {holder.key: holder.owner for holder in store.leases()}

    assert owners == {f"k{number}": f"o{number}" for number in range(number_of_leases)}
    stats = client.info("commandstats")
    assert "cmdstat_keys" not in stats
    assert "cmdstat_scan" not in stats
    # One for each bucket's index and one for each hundred leases in it.
    assert stats["cmdstat_evalsha"]["calls"] < 64 * 3 + 10
