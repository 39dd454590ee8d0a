"""
What a fenced run costs: two questions to the lease store, a miss one; nothing else.

Notes and renewals travel in the background, many at once, so they are told apart by name.
"""

from __future__ import annotations

import pytest
from bench.deliveries import questions_asked
from bench.waiting import wait_until
from bench.world import Bench

from celery_fence.task.endings import LARGEST_RESULT

BACKGROUND = {"note", "renew"}
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
    with questions_asked(bench) as asked:
        bench.app.tasks[policy].apply_async((bench.key(),)).get(timeout=20)

    assert on_the_path(asked) == {"acquire": 1, "release": 1}


@pytest.mark.parametrize("ending", ["raise", "ignore", "retry"])
def test_a_run_that_ends_otherwise_asks_as_often(bench, ending):
    key = bench.key()
    with questions_asked(bench) as asked:
        bench.send("retry", key, {"then": ending, "times": 1})
        runs = 2 if ending == "retry" else 1
        wait_until(lambda: len(bench.ledger.facts("lease_released", fence_key=f"job:{key}")) == runs)

    assert on_the_path(asked) == {"acquire": runs, "release": runs}


@pytest.mark.parametrize("policy", ["dead_letter", "skip", "raise"])
def test_a_miss_that_ends_the_message_asks_once(bench, policy):
    key = bench.key()
    bench.occupy(key)
    with questions_asked(bench) as asked:
        bench.outcome(bench.send(policy, key))

    assert on_the_path(asked) == {"acquire": 1}


@pytest.mark.parametrize("policy", ["retry", "requeue"])
def test_each_miss_of_a_message_that_comes_again_asks_once(bench, policy):
    key = bench.key()
    bench.occupy(key, ttl=2.5)
    with questions_asked(bench) as asked:
        bench.send(policy, key).get(timeout=20)
        misses = bench.misses(key)

    assert misses > 1
    assert on_the_path(asked) == {"acquire": misses + 1, "release": 1}


@pytest.mark.parametrize("value", [5, "x" * 9000, "x" * 70_000])
def test_a_run_with_a_record_asks_twice_and_one_that_is_answered_from_it_once(bench, value):
    """Also where the result is too large for the record."""
    key, plan = bench.key(), {"order": bench.key("order"), "value": value}
    with questions_asked(bench) as first:
        bench.send("once", key, plan).get(timeout=20)
    with questions_asked(bench) as second:
        result = bench.send("once", key, plan)
        wait_until(result.ready)

    assert on_the_path(first) == {"acquire": 1, "release": 1}
    assert on_the_path(second) == {"acquire": 1}
    assert result.successful() is (len(str(value)) < LARGEST_RESULT)


def test_100_misses_ask_100_times(bench):
    key = bench.key()
    bench.occupy(key)
    with questions_asked(bench) as asked:
        results = [bench.send("skip", key) for _ in range(100)]
        wait_until(lambda: all(result.ready() for result in results))

    assert on_the_path(asked) == {"acquire": 100}


def on_the_path(asked):
    """The questions that a task waits for."""
    return {name: count for name, count in asked.items() if name not in BACKGROUND}
