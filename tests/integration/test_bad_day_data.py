"""The lease server loses what it was to keep: a flush, a deleted key, an eviction, forgotten scripts."""

from __future__ import annotations

import uuid

import pytest
from bench.waiting import wait_until
from bench.world import Bench

from celery_fence.locking.store import Claim, Granted

TTL = 3.0


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=TTL)
    bench.worker(concurrency=2)
    return bench


def delete(bench, number, key):
    """The lease is the first of a key's names, the counter the second."""
    assert bench.lease_client.delete(bench.store._names.of(f"job:{key}".encode())[number]) == 1


def evict(bench, key, policy):
    """Fill the server until it has thrown the lease away; afterwards it has room again."""
    client = bench.lease_client
    client.config_set("maxmemory-policy", policy)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 2_000_000)
    # Where only keys with an expiry may go, the server is full once they are gone.
    fill = """
    for number = 1, 200 do redis.pcall('SET', ARGV[1] .. number, string.rep('x', 1000)) end
    return redis.call('EXISTS', KEYS[1])
    """
    lease = bench.store._names.lease(f"job:{key}".encode())
    try:
        wait_until(lambda: not client.eval(fill, 1, lease, uuid.uuid4().hex), what="the lease is evicted")
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


VANISH = {
    "FLUSHALL": lambda bench, key: bench.lease_client.flushall(),
    "FLUSHDB": lambda bench, key: bench.lease_client.flushdb(),
    "DEL of the lease": lambda bench, key: delete(bench, 0, key),
    "eviction, volatile-lru": lambda bench, key: evict(bench, key, "volatile-lru"),
    "eviction, allkeys-lru": lambda bench, key: evict(bench, key, "allkeys-lru"),
}

UNNOTICED = {
    "DEL of the counter": lambda bench, key: delete(bench, 1, key),
    "SCRIPT FLUSH": lambda bench, key: bench.lease_client.script_flush(),
}


def facts(bench, what, key):
    return bench.ledger.facts(what, fence_key=f"job:{key}")


@pytest.mark.parametrize("loss", [*VANISH, *UNNOTICED])
def test_at_acquire_what_was_lost_takes_no_token_back(bench, loss):
    key = bench.key()
    bench.send("retry", key).get(timeout=20)
    before = bench.occupy(key) if loss in VANISH else bench.ledger.tokens(key)[0]
    (VANISH | UNNOTICED)[loss](bench, key)

    bench.send("retry", key).get(timeout=20)
    assert bench.ledger.tokens(key)[-1] > before


@pytest.mark.parametrize("loss", VANISH)
def test_while_held_a_lease_that_vanished_is_put_back_at_the_next_beat_if_nobody_came(bench, loss):
    key = bench.key()
    result, gate = bench.hold(key, task="lost_raise", value="done")
    token = bench.holder(key).token
    VANISH[loss](bench, key)
    wait_until(
        lambda: f"'job:{key}' had vanished from the store and was put back" in bench.workers[0].log,
        what="the lease was put back",
    )
    holder = bench.holder(key)
    gate.open()

    assert (holder.token, holder.facts.task_id) == (token, result.id)
    assert result.get(timeout=20) == "done"
    assert facts(bench, "lease_lost", key) == []


@pytest.mark.parametrize("loss", ["FLUSHALL", "DEL of the lease"])
def test_while_held_the_holder_is_told_at_its_next_beat_that_somebody_came(bench, loss):
    key = bench.key()
    result, _ = bench.hold(key, task="lost_raise")
    newcomer = take_over(bench, key, VANISH[loss])

    assert bench.outcome(result, timeout=10) == "FAILURE"
    assert "another owner holds the key now" in str(result.result)
    assert newcomer.token > bench.ledger.tokens(key)[0]
    assert bench.holder(key).token == newcomer.token  # the late holder's release left it alone


def take_over(bench, key, vanish):
    """Take the key between the loss and the holder's next beat; again, should the beat have been quicker."""
    claim = Claim(f"job:{key}", uuid.uuid4().hex, 60.0)

    def taken():
        vanish(bench, key)
        answer = bench.store.acquire(claim)
        return answer if isinstance(answer, Granted) else None

    return wait_until(taken, what=f"{key} is taken over")


@pytest.mark.parametrize("loss", UNNOTICED)
def test_while_held_neither_a_lost_counter_nor_lost_scripts_are_noticed(bench, loss):
    key = bench.key()
    result, gate = bench.hold(key, task="lost_raise", value="done")
    before = bench.holder(key)
    UNNOTICED[loss](bench, key)
    beats = len(facts(bench, "lease_renewed", key))
    wait_until(lambda: len(facts(bench, "lease_renewed", key)) > beats, what="it is renewed")
    after = bench.holder(key)
    gate.open()

    assert (after.owner, after.token) == (before.owner, before.token)
    assert result.get(timeout=20) == "done"
    assert facts(bench, "lease_lost", key) == facts(bench, "lease_renewal_failed", key) == []


@pytest.mark.parametrize("loss", [*VANISH, *UNNOTICED])
def test_at_release_a_finished_task_stays_finished_and_the_next_token_is_higher(bench, loss):
    key = bench.key()
    result, gate = bench.hold(key, task="lost_raise", value="done")
    (VANISH | UNNOTICED)[loss](bench, key)
    gate.open()

    assert result.get(timeout=20) == "done"
    assert bench.send("retry", key, {"value": "next"}).get(timeout=20) == "next"
    first, second = bench.ledger.tokens(key)
    assert second > first
    assert bench.ledger.overlaps(key) == []
