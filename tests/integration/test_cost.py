"""What a fenced run costs: two questions to the lease store, a miss one; nothing else."""

from __future__ import annotations

import pytest
from bench.store_calls import counted
from bench.waiting import wait_until
from bench.world import Bench

POLICIES = ("retry", "requeue", "dead_letter", "skip", "raise")


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    """One pool process that has run every task once: scripts loaded, connections made."""
    bench = make_bench(fence_ttl=60.0)
    bench.worker(concurrency=1)
    for policy in (*POLICIES, "default", "tokenless"):
        bench.app.tasks[policy].apply_async((bench.key(),)).get(timeout=20)
    return bench


@pytest.mark.parametrize("policy", [*POLICIES, "default", "tokenless"])
def test_a_run_asks_the_store_twice(bench, policy):
    with counted(bench.lease_client) as calls:
        bench.app.tasks[policy].apply_async((bench.key(),)).get(timeout=20)

    assert (calls.scripts, dict(calls.commands)) == (2, {"EVALSHA": 2})


@pytest.mark.parametrize("ending", ["raise", "ignore", "retry"])
def test_a_run_that_ends_otherwise_asks_as_often(bench, ending):
    key = bench.key()
    with counted(bench.lease_client) as calls:
        bench.send("retry", key, {"then": ending, "times": 1})
        runs = 2 if ending == "retry" else 1
        wait_until(lambda: len(bench.ledger.facts("lease_released", fence_key=f"job:{key}")) == runs)

    assert calls.scripts == 2 * runs


@pytest.mark.parametrize("policy", ["dead_letter", "skip", "raise"])
def test_a_miss_that_ends_the_message_asks_once(bench, policy):
    key = bench.key()
    bench.occupy(key)
    with counted(bench.lease_client) as calls:
        bench.outcome(bench.send(policy, key))

    assert (calls.scripts, dict(calls.commands)) == (1, {"EVALSHA": 1})


@pytest.mark.parametrize("policy", ["retry", "requeue"])
def test_each_miss_of_a_message_that_comes_again_asks_once(bench, policy):
    key = bench.key()
    bench.occupy(key, ttl=2.5)
    with counted(bench.lease_client) as calls:
        bench.send(policy, key).get(timeout=20)
        misses = bench.misses(key)

    assert misses > 1
    assert (calls.scripts, dict(calls.commands)) == (misses + 2, {"EVALSHA": misses + 2})


def test_100_misses_ask_100_times(bench):
    key = bench.key()
    bench.occupy(key)
    with counted(bench.lease_client) as calls:
        results = [bench.send("skip", key) for _ in range(100)]
        wait_until(lambda: all(result.ready() for result in results))

    assert (calls.scripts, dict(calls.commands)) == (100, {"EVALSHA": 100})
