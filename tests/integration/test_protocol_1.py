"""Celery's old message protocol, which some keep for their other workers: what differs in it for us."""

from __future__ import annotations

import pytest
from bench.waiting import wait_until
from bench.world import Bench

from celery_fence import is_skipped
from celery_fence.task.dead_letters import letters, replay


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(task_protocol=1)
    bench.worker(concurrency=2)
    return bench


def test_a_chain_whose_first_step_is_skipped_ends_with_its_record(bench):
    """Its steps travel as links there."""
    key = bench.key()
    bench.occupy(key)
    skip, plain = bench.app.tasks["skip"], bench.app.tasks["plain"]
    final = (skip.s(key) | plain.si(bench.key("second")) | plain.si(bench.key("third"))).apply_async()

    assert is_skipped(final.get(timeout=20))
    assert is_skipped(final.parent.get(timeout=20))


def test_misses_are_counted_and_the_message_runs_once(bench):
    key = bench.key()
    bench.occupy(key, ttl=2.5)
    result = bench.send("retry", key, {"value": "once"})

    assert result.get(timeout=20) == "once"
    assert bench.misses(key) >= 1
    assert len(bench.ledger.starts(key)) == 1


def test_a_dead_letter_is_known_by_its_id_and_runs_when_it_is_replayed(bench):
    key = bench.key()
    bench.occupy(key)
    result = bench.send("dead_letter", key, {"value": "after all"})
    assert bench.outcome(result) == "FAILURE"
    bench.vacate(key)

    assert [letter.id for letter in letters(bench.app)] == [result.id]
    assert replay(bench.app, ids=[result.id]) == 1
    wait_until(lambda: bench.ledger.ends(key))
    assert [start["task_id"] for start in bench.ledger.starts(key)] == [result.id]
