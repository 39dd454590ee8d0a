"""How long the store asks a server that is slow, silent or gone, how often, and how long it waits for a connection."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import redis

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import Claim, Granted, Released
from celery_fence.stores import from_url
from celery_fence.stores.redis import client as client_module
from celery_fence.testing.proxy import Proxy
from celery_fence.testing.servers import embedded_server

CLAIM = Claim("tenant:7:sync", "owner", 30.0)


@pytest.fixture
def pauses(monkeypatch):
    """How long the store paused between two attempts, each time."""
    made = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=made.append)
    monkeypatch.setattr(client_module, "time", clock)
    return made


class TestAttempts:
    def test_a_connection_that_the_server_closed_while_idle_costs_no_pause(
        self, store_behind_proxy, proxy, pauses
    ):
        grant = store_behind_proxy.acquire(CLAIM)
        proxy.reset()

        assert store_behind_proxy.release(CLAIM, grant.token) == Released()
        assert (proxy.accepted, pauses) == (2, [])

    def test_a_server_that_refuses_is_asked_three_times_with_one_pause(
        self, store_behind_proxy, proxy, pauses
    ):
        proxy.go_down()

        with pytest.raises(StoreUnavailable):
            store_behind_proxy.holder(CLAIM.key)

        assert proxy.accepted == 3
        assert [0.04 < pause < 0.16 for pause in pauses] == [True]

    def test_a_server_that_hangs_costs_one_timeout_a_call_once_it_is_known(
        self, store_behind_proxy, proxy, pauses
    ):
        store_behind_proxy.acquire(CLAIM)
        proxy.hold()
        with pytest.raises(StoreUnavailable):
            store_behind_proxy.holder(CLAIM.key)
        known, started = proxy.accepted, time.monotonic()

        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="didn't answer in time"):
                store_behind_proxy.holder(CLAIM.key)

        # The timeout of this store is one second.
        assert proxy.accepted == known + 2
        assert 1.9 < time.monotonic() - started < 3.0
        proxy.heal()
        assert store_behind_proxy.holder(CLAIM.key).owner == CLAIM.owner
        assert pauses == []

    def test_one_idle_connection_that_hangs_is_the_end_of_all(self, store_behind_proxy, proxy):
        """Else each of them would cost a call a timeout."""
        connections = store_behind_proxy._client._connections
        taken = [connections.take() for _ in range(3)]
        for loan in taken:
            loan.connection.connect()
            connections.give_back(loan, healthy=True)
        proxy.deafen()

        store_behind_proxy.holder(CLAIM.key)
        assert proxy.accepted == 4
        store_behind_proxy.holder(CLAIM.key)
        assert proxy.accepted == 4


class TestTime:
    def test_the_handshake_counts(self, prefix):
        """A password and a database are a round trip each, and each had a timeout of its own."""
        with (
            embedded_server(options={"requirepass": "pw"}) as server,
            Proxy(server.host, server.port) as proxy,
        ):
            proxy.delay = 0.48
            store = from_url(f"redis://:pw@127.0.0.1:{proxy.port}/3", timeout=0.5)
            started = time.monotonic()

            with pytest.raises(StoreUnavailable, match="didn't answer in time"):
                store.acquire(CLAIM)
            assert time.monotonic() - started < 1.9

    def test_all_addresses_of_a_name_share_it(self, prefix, deaf_port, monkeypatch):
        found = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", deaf_port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: [found] * 9)
        store = from_url(f"redis://leases.test:{deaf_port}/0", prefix=prefix, timeout=0.3)
        started = time.monotonic()

        with pytest.raises(StoreUnavailable, match="didn't answer in time"):
            store.holder(CLAIM.key)
        assert 0.8 < time.monotonic() - started < 1.8

    def test_a_slow_resolver_is_not_asked_again_once_the_time_is_over(self, prefix, monkeypatch):
        asked = []

        def resolve(*_args, **_more):
            asked.append(time.monotonic())
            threading.Event().wait(0.4)
            raise socket.gaierror(-3, "Temporary failure in name resolution")

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        store = from_url("redis://leases.test/0", prefix=prefix, timeout=0.1)

        with pytest.raises(StoreUnavailable, match="name can't be resolved"):
            store.holder(CLAIM.key)
        assert len(asked) == 1

    def test_a_fresh_connection_sends_nothing_that_nobody_needs(self, client, server, prefix):
        client.config_resetstat()
        store = from_url(server.url, prefix=prefix)
        store.holder(CLAIM.key)
        store.close()

        ran = {name for name in client.info("commandstats") if "client" in name}
        assert ran == {"cmdstat_client|setname"}


class TestConnections:
    def test_a_caller_waits_for_a_free_connection_as_long_as_its_call_may_take(
        self, store_behind_proxy, proxy
    ):
        connections = store_behind_proxy._client._connections
        taken = [connections.take() for _ in range(client_module.MAX_CONNECTIONS)]
        answers = []
        thread = threading.Thread(target=lambda: answers.append(store_behind_proxy.acquire(CLAIM)))
        thread.start()
        # Longer than one timeout, which is a second, and shorter than two: the third is for the call itself.
        thread.join(1.1)
        assert (answers, proxy.accepted) == ([], 0)
        connections.give_back(taken.pop(), healthy=False)
        thread.join(10)

        assert isinstance(answers[0], Granted)
        for loan in taken:
            connections.give_back(loan, healthy=False)

    def test_who_gets_none_is_told_what_to_do_and_keeps_those_that_others_gave_back(self, server, prefix):
        store = from_url(server.url, prefix=prefix, timeout=0.2).for_heartbeat()
        store.holder(CLAIM.key)
        connections = store._client._connections
        taken = connections.take()
        started = time.monotonic()

        with pytest.raises(
            StoreUnavailable, match=r"all connections of this process to it were in use.*concurrency"
        ):
            store.holder(CLAIM.key)

        assert 0.3 < time.monotonic() - started < 1.5
        connections.give_back(taken, healthy=True)
        assert store.holder(CLAIM.key) is None


class TestMessages:
    def test_tls_where_the_server_speaks_none(self, server, prefix):
        store = from_url(f"rediss://127.0.0.1:{server.port}/0?ssl_cert_reqs=none", prefix=prefix, timeout=0.3)

        with pytest.raises(StoreUnavailable, match="whether it speaks TLS at that port"):
            store.holder(CLAIM.key)

    def test_a_database_that_there_is_not(self, server, prefix):
        store = from_url(f"redis://127.0.0.1:{server.port}/99", prefix=prefix)

        with pytest.raises(StoreUnavailable, match="no database of that number"):
            store.holder(CLAIM.key)

    def test_a_name_that_there_is_not(self, prefix):
        with pytest.raises(StoreUnavailable, match="name can't be resolved"):
            from_url("redis://nothing.invalid/0", prefix=prefix, timeout=1).holder(CLAIM.key)

    def test_no_file_left_to_open(self, server, prefix, monkeypatch):
        def none_left(*_args, **_more):
            raise OSError(24, "Too many open files")

        store = from_url(server.url, prefix=prefix)
        monkeypatch.setattr(socket, "socket", none_left)
        with pytest.raises(StoreUnavailable, match="ulimit -n"):
            store.holder(CLAIM.key)


def test_the_time_that_redis_py_takes_for_a_wait_is_what_is_left_of_the_call(server, prefix):
    """Whatever a version of it does with the two options: no wait is without an end."""
    store = from_url(server.url, prefix=prefix, timeout=2)
    loan = store._client._connections.take(time.monotonic() + 60)
    connection = loan.connection
    assert isinstance(connection, redis.Connection)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (2, 2)
    connection.deadline.at = time.monotonic() + 1
    assert 0 < connection.socket_timeout < 1
    assert 0 < connection.socket_connect_timeout < 1
    connection.deadline.at = time.monotonic()
    with pytest.raises(TimeoutError):
        connection.socket_timeout  # noqa: B018 - reading it is the question
    store._client._connections.give_back(loan, healthy=False)
