"""One at a time per key, over real processes: seen in the ledger, not in the lock."""

from __future__ import annotations

import pytest
from bench.waiting import wait_until
from bench.world import Bench

from celery_fence import is_skipped

MESSAGES, KEYS = 200, 20


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    """Two prefork workers, one of which replaces its children all the time."""
    bench = make_bench(fence_ttl=30.0)
    recycling = bench.launch(concurrency=2, options=["--max-tasks-per-child=15"])
    bench.worker(concurrency=2)
    recycling.await_ready()
    return bench


@pytest.fixture(scope="module")
def crowd(bench) -> list[str]:
    """200 messages on 20 keys, those of a key one after the other, all of them done; the keys."""
    keys = [bench.key() for _ in range(KEYS)]
    results = [
        bench.send("retry", keys[n * KEYS // MESSAGES], {"sleep": 0.02, "value": n}) for n in range(MESSAGES)
    ]
    wait_until(
        lambda: all(result.state == "SUCCESS" for result in results), timeout=120, what="200 messages done"
    )
    assert [result.get() for result in results] == list(range(MESSAGES))
    return keys


def test_each_of_200_messages_on_20_keys_has_its_body_run_once(bench, crowd):
    runs = [
        fact["task_id"] for key in crowd for fact in bench.ledger.ends(key) if fact["outcome"] == "return"
    ]
    starts = [fact["task_id"] for key in crowd for fact in bench.ledger.starts(key)]

    assert len(runs) == len(starts) == len(set(starts)) == MESSAGES


def test_no_two_runs_of_a_key_overlap_although_they_met(bench, crowd):
    assert sum(bench.misses(key) for key in crowd) > KEYS, "nobody contended: the test proves nothing"
    assert [bench.ledger.overlaps(key) for key in crowd] == [[]] * KEYS


def test_the_tokens_of_a_key_grow_from_run_to_run(bench, crowd):
    for key in crowd:
        tokens = bench.ledger.tokens(key)
        assert tokens == sorted(set(tokens))


def test_nothing_is_left_in_the_lease_store_but_what_expires(bench, crowd):
    wait_until(lambda: list(bench.store.leases()) == [], timeout=5, what="all leases released")
    left = {key: bench.lease_client.ttl(key) for key in bench.lease_client.scan_iter("*")}

    assert all(seconds > 0 for seconds in left.values()), left


def test_of_50_messages_at_once_one_runs_and_the_others_are_skipped(bench):
    key, gate = bench.key(), bench.gate()
    results = [bench.send("skip", key, {"gate": gate.path.name, "value": "ran"}) for _ in range(50)]
    wait_until(lambda: len([result for result in results if result.ready()]) == 49, what="49 skipped")
    gate.open()
    values = [result.get(timeout=20) for result in results]

    assert sorted(is_skipped(value) for value in values) == [False] + [True] * 49
    assert len(bench.ledger.starts(key)) == 1


def test_two_different_tasks_with_one_template_exclude_each_other(bench):
    key = bench.key()
    _, gate = bench.hold(key, task="retry")
    other = bench.send("dead_letter", key)

    assert bench.outcome(other) == "FAILURE"
    assert [fact["task"] for fact in bench.ledger.starts(key)] == ["retry"]
    gate.open()


@pytest.mark.parametrize("value", [None, False, 0, "", []])
def test_an_empty_result_is_a_result_and_not_a_miss(bench, value):
    key = bench.key()
    result = bench.send("retry", key, {"value": value})

    assert result.get(timeout=20) == value
    assert (len(bench.ledger.starts(key)), bench.misses(key)) == (1, 0)
