"""What the Redis store does when scripts are forgotten, servers come and go, and Redis holds what isn't ours."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import NoneType

import pytest

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import (
    Claim,
    Ending,
    Gone,
    Granted,
    Held,
    Kept,
    Note,
    Raised,
    Released,
    Renewal,
)
from celery_fence.stores import from_url
from celery_fence.testing.proxy import Proxy
from celery_fence.testing.servers import embedded_server

CLAIM = Claim("tenant:7:sync", "owner", 30.0)
DELIVERED = Claim(CLAIM.key, "owner", 30.0, delivery="d1", message="m1")
COPY = Claim(CLAIM.key, "copy", 30.0, delivery="d1", message="m1")
ASKER = Claim(CLAIM.key, "asker", 30.0, delivery="d2", message="m2", if_held="skipped")
ASKERS_COPY = Claim(CLAIM.key, "asker's copy", 30.0, delivery="d2", message="m2", if_held="skipped")
VALUE = b"\x00\xff\r\n" * 2000
NOTE = Note(CLAIM.key, "d1", "returned", 3600.0)


def calls(client):
    """How often each command was run, without those of connecting and looking."""
    stats = client.info("commandstats")
    # Commands that a script runs are counted too: only those that came over the wire are of interest.
    return {
        name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "script|load")
    }


def rise(client, question):
    before = calls(client)
    question()
    return {name: after - before[name] for name, after in calls(client).items() if after != before[name]}


class TestOutages:
    def test_a_silent_server_is_given_up_within_three_timeouts(self, store_behind_proxy, proxy):
        store_behind_proxy.acquire(CLAIM)
        proxy.hold()
        started = time.monotonic()

        with pytest.raises(StoreUnavailable, match="didn't answer in time"):
            store_behind_proxy.holder(CLAIM.key)

        # The timeout of this store is one second; it asked twice, the second time on a new connection.
        assert proxy.accepted == 2
        assert 1.9 < time.monotonic() - started < 3.3

    def test_a_server_to_which_no_connection_can_be_made_is_given_up_within_three_timeouts(
        self, prefix, deaf_port
    ):
        """Neither accepted nor refused, as by a firewall that drops what it doesn't like."""
        store = from_url(f"redis://127.0.0.1:{deaf_port}/0", prefix=prefix, timeout=1)
        started = time.monotonic()

        with pytest.raises(StoreUnavailable, match="didn't answer in time"):
            store.holder(CLAIM.key)

        assert 0.9 < time.monotonic() - started < 4.5

    def test_a_connection_that_went_silent_is_replaced(self, store_behind_proxy, proxy):
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.deafen()

        assert store_behind_proxy.release(CLAIM, grant.token) == Released()
        assert proxy.accepted == 2

    def test_a_refusing_server_is_given_up_at_once_and_found_again_when_it_is_back(
        self, store_behind_proxy, proxy
    ):
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.go_down()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match="can't be reached"):
            store_behind_proxy.holder(CLAIM.key)
        assert time.monotonic() - started < 1.0

        proxy.heal()
        assert store_behind_proxy.holder(CLAIM.key).token == grant.token

    def test_a_slow_reply_is_waited_for(self, store_behind_proxy, proxy):
        proxy.delay = 0.1

        assert isinstance(store_behind_proxy.acquire(CLAIM), Granted)

    def test_many_connections_survive_a_restart_with_data(self, prefix):
        with embedded_server(persistent=True) as server:
            store = from_url(server.url, prefix=prefix)
            grant = store.acquire(CLAIM)
            open_connections(store, 8)
            server.kill()
            server.start()

            assert store.renew([Renewal(CLAIM, grant.token, grant.since)]) == [Kept()]
            store.close()

    def test_after_a_restart_without_data_tokens_grow_and_the_holder_is_put_back(self, prefix):
        with embedded_server() as server:
            store = from_url(server.url, prefix=prefix)
            grant = store.acquire(CLAIM)
            server.kill()
            server.start()

            assert store.acquire(Claim("other", "o", 5.0)).token > grant.token
            kept = store.renew([Renewal(CLAIM, grant.token, grant.since)])
            assert kept == [Kept(reinstated=True)]
            store.close()

    def test_a_replica_is_not_taken_for_a_primary_and_its_connection_is_dropped(self, prefix):
        with embedded_server() as primary, embedded_server() as other:
            store = from_url(other.url, prefix=prefix, timeout=1)
            grant = store.acquire(CLAIM)
            with admin(other) as client:
                client.replicaof(primary.host, primary.port)
                with pytest.raises(StoreUnavailable, match="read-only replica"):
                    store.renew([Renewal(CLAIM, grant.token, grant.since)])
                assert store._client._connections._idle == []
                client.replicaof("NO", "ONE")
            assert isinstance(store.renew([Renewal(CLAIM, grant.token, grant.since)])[0], Kept)
            store.close()

    def test_one_connection_that_still_leads_to_the_old_primary_is_the_end_of_all_idle_ones(self, prefix):
        """Its name leads elsewhere since the failover. Else each of them would refuse a question."""
        with embedded_server() as old, embedded_server() as new, Proxy(old.host, old.port) as name:
            store = from_url(f"redis://{name.host}:{name.port}/0", prefix=prefix, timeout=1)
            connections = store._client._connections
            taken = [connections.take() for _ in range(5)]
            for loan in taken:
                loan.connection.connect()
                connections.give_back(loan, healthy=True)
            with admin(old) as client:
                client.replicaof(new.host, new.port)
            name.target = (new.host, new.port)

            assert isinstance(store.acquire(CLAIM), Granted)
            assert name.accepted == 5 + 1
            store.close()

    def test_a_full_server_grants_nothing_more_and_lets_its_leases_be_renewed_and_released(self, prefix):
        with embedded_server() as server, admin(server) as client:
            store = from_url(server.url, prefix=prefix)
            grant = store.acquire(CLAIM)
            client.config_set("maxmemory", "1")

            with pytest.raises(StoreUnavailable, match="out of memory"):
                store.acquire(Claim("another", "o", 30.0))
            assert store.renew([Renewal(CLAIM, grant.token, grant.since)]) == [Kept()]
            client.flushall()
            assert store.renew([Renewal(CLAIM, grant.token, grant.since)]) == [Kept(reinstated=True)]
            assert store.release(CLAIM, grant.token) == Released()
            assert isinstance(store.force_release("another").holder, NoneType)
            store.close()

    def test_a_full_server_remembers_how_runs_end_and_decides_nothing_about_misses(self, prefix):
        with embedded_server() as server, admin(server) as client:
            store = from_url(server.url, prefix=prefix)
            grant = store.acquire(DELIVERED)
            other = Claim("another", "o", 30.0, delivery="d3")
            others = store.acquire(other)
            client.config_set("maxmemory", "1")

            with pytest.raises(StoreUnavailable, match="out of memory"):
                store.acquire(ASKER)
            assert store.release(DELIVERED, grant.token, Ending("returned", VALUE)) == Released()
            assert store.acquire(COPY).ending == Ending("returned", VALUE)
            store.force_release(other.key)
            assert store.release(other, others.token, Ending("failed")) == Gone("force_released")
            store.note([Note(CLAIM.key, "d4", "failed", 3600.0)])
            store.note([NOTE])
            assert store.acquire(COPY).noted
            assert store.acquire(Claim(CLAIM.key, "o", 30.0, delivery="d4")).noted
            store.close()

    def test_a_full_server_records_what_is_done_and_raises_counters(self, prefix):
        with embedded_server() as server, admin(server) as client:
            store = from_url(server.url, prefix=prefix)
            done, lost = (Claim(key, "o", 30.0, record=f"record of {key}") for key in ("done", "lost"))
            tokens = {claim.key: store.acquire(claim).token for claim in (done, lost)}
            client.config_set("maxmemory", "1")

            assert store.raise_counter(done, tokens["done"], tokens["done"] + 10**9) == Raised()
            store.release(done, tokens["done"], Ending("returned", result=VALUE))
            store.force_release("lost")
            store.release(lost, tokens["lost"], Ending("returned", result=VALUE))
            assert [store.record(f"record of {key}").value for key in ("done", "lost")] == [VALUE] * 2
            assert store.delete_record("record of lost").size == len(VALUE)
            store.close()

    def test_a_user_without_scripts_is_told_which_permission_is_missing(self, client, server, prefix):
        client.execute_command("ACL", "SETUSER", "plain", "on", ">s3cret", "~*", "+@all", "-@scripting")
        store = from_url(f"redis://plain:s3cret@127.0.0.1:{server.port}/0", prefix=prefix)

        with pytest.raises(StoreUnavailable, match=r"grant \+eval") as caught:
            store.acquire(CLAIM)
        assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r} {store!r}"

    def test_a_wrong_password_is_not_asked_twice(self, client, server, prefix):
        client.execute_command("ACL", "SETUSER", "known", "on", ">right", "~*", "+@all")
        store = from_url(f"redis://known:wr0ng@127.0.0.1:{server.port}/0", prefix=prefix)
        before = client.info("stats")["total_connections_received"]

        with pytest.raises(StoreUnavailable, match="password"):
            store.acquire(CLAIM)
        assert client.info("stats")["total_connections_received"] == before + 1


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


class TestScripts:
    def test_each_question_is_one_command(self, store, client):
        def questions():
            grant = store.acquire(CLAIM)
            store.acquire(Claim(CLAIM.key, "another", 5.0))
            store.renew([Renewal(CLAIM, grant.token, grant.since)])
            store.holder(CLAIM.key)
            store.release(CLAIM, grant.token)
            store.force_release(CLAIM.key)

        rise(client, questions)
        store.force_release(CLAIM.key)
        client.delete(*client.keys())

        assert rise(client, questions) == {"evalsha": 6}

    def test_a_hundred_leases_of_many_buckets_are_renewed_by_one_command(self, store, client):
        claims = [Claim(f"tenant:{number}", "o", 5.0) for number in range(100)]
        wishes = [
            Renewal(claim, grant.token, grant.since) for claim in claims if (grant := store.acquire(claim))
        ]
        store.renew(wishes)

        assert rise(client, lambda: store.renew(wishes)) == {"evalsha": 1}

    @pytest.mark.parametrize("lost_delay", [0.0, 20.0])
    def test_a_lease_that_is_as_it_was_left_is_renewed_by_its_time_left_alone(
        self, store, client, lost_delay
    ):
        claims = [Claim(f"tenant:{number}", "o", 5.0, lost_delay=lost_delay) for number in range(100)]
        wishes = [
            Renewal(claim, grant.token, grant.since) for claim in claims if (grant := store.acquire(claim))
        ]
        client.config_resetstat()

        assert store.renew(wishes) == [Kept()] * 100

        ran = {name: stats["calls"] for name, stats in client.info("commandstats").items()}
        assert ran["cmdstat_hmget"] == ran["cmdstat_zadd"] == ran["cmdstat_pexpire"] == 100
        assert ran["cmdstat_pttl"] <= 64 + (100 if lost_delay else 0)
        assert (ran["cmdstat_time"], "cmdstat_hset" in ran) == (1, False)

    def test_forgotten_scripts_cost_one_more_round_trip_and_nothing_else(self, store, client):
        grant = store.acquire(CLAIM)
        for question, expected in (
            (lambda: store.acquire(CLAIM), grant),
            (lambda: store.renew([Renewal(CLAIM, grant.token, grant.since)]), [Kept()]),
            (lambda: store.release(CLAIM, grant.token), Released()),
        ):
            client.script_flush()
            answers = []
            assert rise(client, lambda ask=question: answers.append(ask())) == {"evalsha": 1, "eval": 1}  # noqa: B023
            assert answers == [expected]

    def test_each_question_about_deliveries_is_one_command(self, store, client):
        def questions():
            grant = store.acquire(DELIVERED)
            store.acquire(ASKER)
            store.acquire(ASKERS_COPY)
            store.release(DELIVERED, grant.token, Ending("returned", VALUE))
            store.acquire(COPY)
            store.note([Note(f"k{number}", "d1", "returned", 3600.0) for number in range(100)])

        rise(client, questions)
        client.delete(*client.keys())

        assert rise(client, questions) == {"evalsha": 6}

    def test_nothing_to_note_is_no_command(self, store, client):
        assert rise(client, lambda: store.note([Note(CLAIM.key, "", "returned", 3600.0)])) == {}


class TestForks:
    def test_parent_and_child_never_share_a_connection(self, store, client):
        store.acquire(Claim("parent", "parent", 30.0))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.write(writer, ask_many_times(store, "child").encode())
            os._exit(0)
        os.close(writer)
        mine = ask_many_times(store, "parent")
        with os.fdopen(reader, "rb") as pipe:
            theirs = pipe.read().decode()
        assert os.waitpid(child, 0)[1] == 0

        assert (mine, theirs) == ("parent", "child")

    def test_a_child_forked_while_all_connections_are_busy_has_its_own(self, client, server, prefix):
        store = from_url(server.url, prefix=prefix, timeout=0.5).for_heartbeat()
        busy = store._client._connections.take()
        child = os.fork()
        if child == 0:
            os._exit(0 if ask_many_times(store, "child") == "child" else 1)
        assert os.waitpid(child, 0)[1] == 0
        store._client._connections.give_back(busy, healthy=True)


def ask_many_times(store, name):
    """The owners that the store named for our own keys: ours alone, unless replies got mixed up."""
    seen = set()
    try:
        for number in range(200):
            claim = Claim(f"{name}:{number}", name, 30.0)
            store.acquire(claim)
            seen.add(store.holder(claim.key).owner)
    except Exception as error:  # noqa: BLE001 - the other process has to hear of it
        return repr(error)
    return ",".join(seen)


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


def admin(server):
    import redis

    return redis.Redis.from_url(server.url)


def server_time_us(client):
    seconds, microseconds = client.time()
    return 1_000_000 * seconds + microseconds


def open_connections(store, number):
    """Let the store have *number* idle connections."""
    connections = store._client._connections
    taken = [connections.take() for _ in range(number)]
    for loan in taken:
        loan.connection.connect()
        connections.give_back(loan, healthy=True)


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
