"""What the Redis store does when servers are silent, gone, full, or not to be written to."""

from __future__ import annotations

import time
from types import NoneType

import pytest

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import Claim, Ending, Gone, Granted, Kept, Note, Raised, Released, Renewal
from celery_fence.stores import from_url
from celery_fence.testing.proxy import Proxy
from celery_fence.testing.servers import embedded_server
from tests.contract.redis_faults.asked import ASKER, CLAIM, COPY, DELIVERED, NOTE, VALUE


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
        with pytest.raises(StoreUnavailable, match=r"can't be reached|closed the connection"):
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


def admin(server):
    import redis

    return redis.Redis.from_url(server.url)


def open_connections(store, number):
    """Let the store have *number* idle connections."""
    connections = store._client._connections
    taken = [connections.take() for _ in range(number)]
    for loan in taken:
        loan.connection.connect()
        connections.give_back(loan, healthy=True)
