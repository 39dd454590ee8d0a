"""What a worker asks its Redis at the start: whether leases can live there, and what speaks against it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import Checkable, Claim, Ending, Kept, Note, Released, Renewal
from celery_fence.stores import from_url
from celery_fence.stores.redis.failures import GRANTS
from celery_fence.testing.servers import embedded_server

CLAIM = Claim("tenant:7:sync", "owner", 30.0, delivery="d1", message="m1")


@contextmanager
def setting(client, name, value):
    before = client.config_get(name)[name]
    client.config_set(name, value)
    try:
        yield
    finally:
        client.config_set(name, before)


@pytest.fixture(scope="module")
def node():
    """A Cluster of one node, which is as strict about slots as one of six."""
    with embedded_server(options={"cluster-enabled": "yes"}) as server:
        yield server


@pytest.fixture(scope="module")
def node_client(node):
    with redis.Redis.from_url(node.url) as client:
        yield client


class TestCheckAtStart:
    def test_the_store_can_be_checked(self, store):
        assert isinstance(store, Checkable)

    def test_it_leaves_nothing_behind(self, store, client):
        assert store.check() == []
        assert client.keys() == []

    @pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru", "volatile-ttl", "allkeys-random"])
    def test_it_warns_of_a_server_that_evicts_and_names_the_policy(self, store, client, policy):
        with setting(client, "maxmemory-policy", policy):
            (warning,) = store.check()

        assert f"maxmemory-policy {policy}" in warning
        assert "noeviction" in warning

    def test_where_the_policy_may_not_be_asked_for_it_says_nothing(self, server, client):
        client.execute_command(
            "ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "+@all", "-info", "-config"
        )
        store = from_url(f"redis://plain:pw@{server.host}:{server.port}/0")
        with setting(client, "maxmemory-policy", "allkeys-lru"):
            assert store.check() == []
        store.close()

    def test_a_full_server_is_found_out(self, store, client):
        with setting(client, "maxmemory", "1"), pytest.raises(StoreUnavailable, match="out of memory"):
            store.check()

    def test_each_right_of_the_advice_is_needed_and_named_where_it_is_missing(self, server, client):
        rights = GRANTS.replace("<fence_prefix>", "fence").split()
        # A script that is known already needs no +eval; +info only makes the check say more.
        for right in set(rights) - {"+eval", "+info"}:
            less = [each for each in rights if each != right]
            client.execute_command("ACL", "SETUSER", "plain", "reset", "on", ">pw", *less)
            store = from_url(f"redis://plain:pw@{server.host}:{server.port}/1")
            named = repr(right[1:]) if right[0] == "+" else "our keys"
            with pytest.raises(StoreUnavailable, match=named.replace("|", r"\|")) as caught:
                store.check()
            assert "pw@" not in str(caught.value)

    def test_the_page_for_users_lists_the_same_rights(self):
        page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
        listed = page.partition("(`ACL SETUSER`)")[2].split("```")[1].split()

        assert listed == GRANTS.replace("<fence_prefix>", "fence").split()

    def test_a_user_with_the_rights_of_the_advice_can_do_all_that_leases_need(self, server, client):
        rights = GRANTS.replace("<fence_prefix>", "fence").split()
        client.execute_command("ACL", "SETUSER", "plain", "reset", "on", ">pw", *rights)
        client.script_flush()
        store = from_url(f"redis://plain:pw@{server.host}:{server.port}/1")

        assert store.check() == []
        grant = store.acquire(CLAIM)
        store.acquire(Claim(CLAIM.key, "asker", 30.0, delivery="d2", message="m2", if_held="skipped"))
        client.execute_command("FLUSHALL")
        assert store.renew([Renewal(CLAIM, grant.token, grant.since)]) == [Kept(reinstated=True)]
        assert [holder.key for holder in store.leases()] == [CLAIM.key]
        assert store.release(CLAIM, grant.token, Ending("returned", b"42")) == Released()
        store.note([Note(CLAIM.key, "d1", "returned", 60.0)])
        assert store.history(CLAIM.key).token == grant.token
        store.force_release(CLAIM.key)
        once = Claim("another", "owner", 30.0, record="payment:7")
        token = store.acquire(once).token
        store.raise_counter(once, token, token)
        store.release(once, token, Ending("returned", result=b"42"))
        assert [record.key for record in store.records()] == ["payment:7"]
        assert store.record("payment:7").value == b"42"
        store.delete_record("payment:7")
        store.close()


class TestCluster:
    """Leases can't live in one yet; but everything of one key lies together, so that they will be able to."""

    @pytest.fixture
    def store(self, node):
        store = from_url(node.url, timeout=1)
        yield store
        store.close()

    def test_without_its_slots_it_is_out_of_reach(self, store):
        with pytest.raises(StoreUnavailable, match="cluster is down"):
            store.acquire(CLAIM)

    def test_it_is_found_out_at_the_start(self, store, node_client):
        serve_all_slots(node_client)

        with pytest.raises(StoreUnavailable, match="it is a Redis Cluster, which can't be used yet"):
            store.check()

    @pytest.mark.parametrize("key", ["7", "a{b}c", "}{", "{}", "{b01}", "fence:{b00}:lease:7"])
    def test_no_question_about_one_key_touches_two_slots(self, store, node_client, key):
        serve_all_slots(node_client)
        claim = Claim(key, "owner", 30.0, delivery="d1", message="m1")
        asker = Claim(key, "asker", 30.0, delivery="d2", message="m2", if_held="skipped")
        grant = store.acquire(claim)

        assert store.acquire(asker).holder.owner == "owner"
        assert store.renew([Renewal(claim, grant.token, grant.since)]) == [Kept()]
        assert store.holder(key).token == grant.token
        assert store.release(claim, grant.token, Ending("returned", b"42")) == Released()
        store.note([Note(key, "d1", "returned", 60.0)])
        assert store.history(key).token == grant.token
        assert store.force_release(key).holder is None
        assert list(store.leases()) == []


def serve_all_slots(client):
    if client.cluster("info")["cluster_state"] == "ok":
        return
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    deadline = time.monotonic() + 30
    while client.cluster("info")["cluster_state"] != "ok":
        assert time.monotonic() < deadline
        time.sleep(0.01)
