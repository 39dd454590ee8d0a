"""`fence leases` lists what is held, `fence why` tells what became of a key."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
import redis
from bench.app import WORLD
from bench.waiting import wait_until

from celery_fence.locking.store import Claim, Granted
from celery_fence.stores import from_url
from tests.integration.cli.commands import document, run, take


def test_no_leases_is_a_sentence_and_no_error(fence, store):
    done = fence("leases")

    assert done.returncode == 0
    assert done.stdout.startswith("No lease in redis://")
    assert document(fence("leases", "--json"))["leases"] == []


def test_leases_as_a_document_have_every_fact_and_times_with_their_zone(fence, store, server):
    claim, granted = take(store, host="web-1", pid=4711, retries=2)
    found = document(fence("leases", "--json"))
    (lease,) = found["leases"]

    assert (found["store"], found["prefix"]) == (server.url, "fence")
    assert (lease["key"], lease["owner"], lease["token"]) == (claim.key, claim.owner, granted.token)
    assert datetime.fromisoformat(lease["since"]).timestamp() == pytest.approx(granted.since)
    assert datetime.fromisoformat(lease["since"]).utcoffset() is not None
    assert 50 < lease["ttl_left"] <= 60
    assert lease["held_for"] >= lease["beat_age"] >= 0


@pytest.mark.parametrize(
    ("text", "keys"), [("tenant:7", ["tenant:7:sync"]), ("web-2", ["feed:1"]), ("zz", [])]
)
def test_leases_can_be_searched_by_key_task_or_host(fence, store, text, keys):
    take(store)
    take(store, "feed:1", host="web-2")

    assert [lease["key"] for lease in document(fence("leases", "--match", text, "--json"))["leases"]] == keys


def test_a_lease_made_by_hand_is_marked(fence, store, server):
    with redis.Redis.from_url(server.url) as client:
        client.set(store._names.of(b"hand")[0], "me")
    take_on_it = store.acquire(Claim("hand", "o", 5.0))
    assert not isinstance(take_on_it, Granted)

    assert "NO-TTL" in fence("leases").stdout
    assert "NO-TTL" in fence("why", "hand").stdout
    assert document(fence("leases", "--json"))["leases"][0]["state"] == "no_ttl"


def test_ten_thousand_leases_are_listed_where_keys_and_scan_are_forbidden(fence, store, server):
    with redis.Redis.from_url(server.url) as client:
        with client.pipeline(transaction=False) as pipe:
            for number in range(10_000):
                lease, _, index = store._names.of(f"k{number}".encode())
                pipe.hset(lease, mapping={"owner": f"o{number}", "token": number + 1})
                pipe.pexpire(lease, 600_000)
                pipe.zadd(index, {f"k{number}": 9e15})
            pipe.execute()
        client.execute_command("ACL", "SETUSER", "default", "-keys", "-scan")
        try:
            listed = document(fence("leases", "--json"))["leases"]
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+keys", "+scan")

    assert {lease["key"] for lease in listed} == {f"k{number}" for number in range(10_000)}


def test_another_prefix_is_another_world(fence, store, server):
    elsewhere = from_url(server.url, prefix="other")
    take(elsewhere, "there")
    elsewhere.close()

    assert document(fence("leases", "--json"))["leases"] == []
    assert [lease["key"] for lease in document(fence("--prefix", "other", "leases", "--json"))["leases"]] == [
        "there"
    ]
    assert document(fence("leases", "--prefix", "other", "--json"))["prefix"] == "other"


def test_why_answers_for_held_released_lost_forced_and_unknown_keys(fence, store):
    take(store, "held")
    claim, granted = take(store, "released")
    store.release(claim, granted.token)
    take(store, "lost", ttl=0.2)
    take(store, "forced")
    store.force_release("forced")
    wait_until(lambda: store.holder("lost") is None)

    states = {}
    for key, words in {
        "held": "The key 'held' is held by billing.sync[0d3c].",
        "released": "It was last released at ",
        "lost": "never released: its lease expired or vanished",
        "forced": "An operator force-released it at ",
        "unknown": "knows nothing of it",
    }.items():
        assert words in fence("why", key).stdout
        found = document(fence("why", key, "--json"))
        states[key] = found["state"]
        assert any(words in sentence for sentence in found["sentences"])
    assert states == {
        "held": "held",
        "released": "free",
        "lost": "free",
        "forced": "free",
        "unknown": "unknown",
    }


def test_a_lease_of_a_real_run_names_its_task_host_and_process(bench):
    key = bench.key("seen")
    result, gate = bench.hold(key)
    env = {WORLD: json.dumps(bench.conf)}
    try:
        done = run("celery", "-A", "bench.app", "fence", "why", f"job:{key}", "--json", env=env)
        lease = document(done)["lease"]
    finally:
        gate.open()

    assert (lease["task"], lease["task_id"]) == ("retry", result.id)
    assert lease["host"]
    assert lease["pid"] in bench.workers[0].child_pids()
    assert bench.outcome(result) == "SUCCESS"
