"""What the Redis store leaves in Redis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence.locking.store import Claim, Ending, Facts, Kept, Note, Renewal
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
    assert set(lease) == {b"layout", b"owner", b"token", b"since", b"ttl", b"facts"}
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
    names += [Names("fence").done(key.encode(), delivery.encode()) for key in parts for delivery in parts]
    names += [Names("fence").record(key.encode())[0] for key in parts]
    names += set(Names("fence").record_indexes())

    assert len(set(names)) == 3 * len(parts) + 2 * 64 + len(parts) ** 2


def test_a_lease_keeps_what_its_claim_has_and_a_marker_what_an_end_has(client, server):
    store = from_url(server.url)
    claim = Claim(KEY, "o", 30.0, delivery="d", message="m", lost_delay=5.0)
    grant = store.acquire(claim)
    marker = b"fence:{b44}:done:0df333348bb2c4f0605e010b6706f5bb:tenant:7:sync"
    lease = client.hgetall("fence:{b44}:lease:tenant:7:sync")
    assert {name: lease[name] for name in (b"delivery", b"message", b"lost_delay")} == {
        b"delivery": b"d",
        b"message": b"m",
        b"lost_delay": b"5000",
    }

    store.release(claim, grant.token, Ending("returned", b"1"))

    assert sorted(client.keys()) == [marker, b"fence:{b44}:token:tenant:7:sync"]
    assert set(client.hgetall(marker)) == {b"how", b"at", b"by", b"value"}
    store.note([Note(KEY, "d", "returned", 3600.0)])
    assert set(client.hgetall(marker)) == {b"how", b"at", b"by", b"noted"}
    store.close()


def test_a_record_and_its_index_are_named_as_documented_and_keep_what_there_is(client, server):
    """In the bucket of the idempotency key, which is another one than that of the lock key."""
    store = from_url(server.url)
    claim = Claim(KEY, "o", 30.0, record="payment:7", record_retention=500.0)
    record, index = b"fence:{b21}:record:payment:7", b"fence:{b21}:records"
    grant = store.acquire(claim)
    assert set(client.hgetall(record)) == {b"key", b"owner", b"token", b"claimed", b"facts"}
    for how, value in [("returned", b"5"), ("returned", None)]:
        store.delete_record("payment:7")
        store.release(claim, grant.token, Ending(how, result=value))
        more = {b"done", b"value"} if value else {b"done"}
        assert set(client.hgetall(record)) == {b"key", b"owner", b"token", b"claimed", b"facts", *more}

    assert sorted(client.keys()) == [record, index, b"fence:{b44}:token:tenant:7:sync"]
    assert client.hget(record, "key") == KEY.encode()
    assert 400_000 < client.pttl(record) <= 500_000
    assert client.zscore(index, "payment:7") == pytest.approx(client.time()[0] * 1000 + 500_000, abs=5000)
    assert client.pttl(index) >= 499_000
    store.close()


def test_records_that_expired_leave_the_index_with_the_next_one(store, client):
    _, index = store._names.record(b"payment:7")
    client.zadd(index, {"long dead": 1})
    store.acquire(Claim(KEY, "o", 30.0, record="payment:7"))

    assert client.zrange(index, 0, -1) == [b"payment:7"]


def test_a_dropped_claim_leaves_nothing(store, client):
    claim = Claim(KEY, "o", 30.0, record="payment:7")
    store.release(claim, store.acquire(claim).token, Ending("failed"))

    assert [name for name in client.scan_iter() if b":token:" not in name] == []


@pytest.mark.parametrize("junk", ["text", "hash"])
def test_junk_in_the_place_of_a_record_is_no_record(store, client, junk):
    record, _ = store._names.record(b"payment:7")
    if junk == "text":
        client.set(record, "x")
    else:
        client.hset(record, "something", "else")
    claim = Claim(KEY, "o", 30.0, record="payment:7")
    assert store.record("payment:7") is None
    store.release(claim, store.acquire(claim).token, Ending("returned", result=b"5"))

    assert store.record("payment:7").value == b"5"
    assert client.pttl(record) > 0


def test_markers_are_kept_for_their_retention_and_no_longer(store, client):
    claim = Claim(KEY, "o", 30.0, delivery="d", retention=50.0)
    asker = Claim(KEY, "p", 30.0, delivery="e", if_held="skipped", retention=60.0)
    grant = store.acquire(claim)
    store.acquire(asker)
    store.release(claim, grant.token, Ending("returned"))
    store.note([Note(KEY, "f", "failed", 70.0), Note(KEY, "d", "returned", 7000.0)])

    left = [client.pttl(store._names.done(KEY.encode(), delivery)) for delivery in (b"d", b"e", b"f")]

    assert [40_000 < left[0] <= 50_000, 50_000 < left[1] <= 60_000, 60_000 < left[2] <= 70_000] == [True] * 3
    assert [client.pttl(name) > 0 for name in client.scan_iter()] == [True] * 4


@pytest.mark.parametrize("reinstated", [False, True])
def test_a_lease_with_a_lost_delay_and_its_index_live_until_the_key_opens(store, client, reinstated):
    lease, _, index = store._names.of(KEY.encode())
    claim = Claim(KEY, "o", 30.0, lost_delay=500.0)
    grant = store.acquire(claim)
    if reinstated:
        client.flushall()
        store.renew([Renewal(claim, grant.token, grant.since)])
    for _ in range(2):
        assert 525_000 < client.pttl(lease) <= 530_000
        assert client.zscore(index, KEY) == pytest.approx(client.time()[0] * 1000 + 530_000, abs=5000)
        assert client.pttl(index) >= 529_000
        client.pexpire(lease, 505_000)
        store.renew([Renewal(claim, grant.token, grant.since)])


@pytest.mark.parametrize("lost_delay", [0.0, 500.0])
def test_the_last_beat_is_told_by_what_is_gone_of_the_ttl(store, client, lost_delay):
    lease = store._names.lease(KEY.encode())
    claim = Claim(KEY, "o", 30.0, lost_delay=lost_delay)
    grant = store.acquire(claim)
    client.pexpire(lease, int(1000 * lost_delay) + 18_000)
    assert store.holder(KEY).beat_age == pytest.approx(12.0, abs=5)

    store.renew([Renewal(claim, grant.token, grant.since)])
    assert store.holder(KEY).beat_age < 5
    longer = replace(claim, ttl=90.0)
    store.renew([Renewal(longer, grant.token, grant.since)])
    assert client.hget(lease, "ttl") == b"90000"
    assert store.holder(KEY).beat_age < 5
    assert 85 < store.holder(KEY).ttl_left <= 90


def test_a_closed_lease_s_last_beat_was_before_its_ttl(store, client):
    store.acquire(Claim(KEY, "o", 30.0, lost_delay=500.0))
    client.pexpire(store._names.lease(KEY.encode()), 400_000)

    holder = store.holder(KEY)
    assert (holder.closed, holder.beat_age) == (True, pytest.approx(130.0, abs=5))


@pytest.mark.parametrize("ttl", ["inf", "nan", "junk", "-5"])
def test_an_odd_ttl_in_a_lease_tells_no_beat_and_is_set_right_by_a_renewal(store, client, ttl):
    lease = store._names.lease(KEY.encode())
    claim = Claim(KEY, "o", 30.0)
    grant = store.acquire(claim)
    client.hset(lease, "ttl", ttl)

    assert store.holder(KEY).beat_age == 0
    store.renew([Renewal(claim, grant.token, grant.since)])
    assert client.hget(lease, "ttl") == b"30000"


@pytest.mark.parametrize("lost_delay", [0.0, 500.0])
def test_a_lease_whose_expiry_was_taken_away_expires_again_after_its_renewal(store, client, lost_delay):
    lease = store._names.lease(KEY.encode())
    claim = Claim(KEY, "o", 30.0, lost_delay=lost_delay)
    grant = store.acquire(claim)
    client.persist(lease)
    for _ in range(2):
        assert store.renew([Renewal(claim, grant.token, grant.since)]) == [Kept()]

        assert 25_000 < client.pttl(lease) - 1000 * lost_delay <= 30_000


@pytest.mark.parametrize(
    ("field", "theirs", "reason"), [("owner", "p", "taken"), ("token", 2**52, "superseded")]
)
def test_a_lease_of_another_owner_or_a_newer_token_isn_t_kept_though_all_else_is_alike(
    store, client, field, theirs, reason
):
    claim = Claim(KEY, "o", 30.0)
    grant = store.acquire(claim)
    client.hset(store._names.lease(KEY.encode()), field, theirs)

    assert store.renew([Renewal(claim, grant.token, grant.since)])[0].reason == reason


def test_an_owner_s_own_lease_that_is_closed_is_over_whatever_its_token(store, client):
    lease = store._names.lease(KEY.encode())
    claim = Claim(KEY, "o", 30.0, lost_delay=500.0)
    grant = store.acquire(claim)
    client.hset(lease, "token", grant.token - 1)
    client.pexpire(lease, 400_000)

    assert store.renew([Renewal(claim, grant.token, grant.since)])[0].reason == "expired"


def test_a_renewal_leaves_the_lost_delay_as_it_was_granted(store, client):
    lease = store._names.lease(KEY.encode())
    for granted, renewed in ((500.0, 0.0), (0.0, 500.0)):
        grant = store.acquire(Claim(KEY, "o", 30.0, lost_delay=granted))
        store.renew([Renewal(Claim(KEY, "o", 30.0, lost_delay=renewed), grant.token, grant.since)])
        assert 25_000 < client.pttl(lease) - 1000 * granted <= 30_000


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
