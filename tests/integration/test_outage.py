"""The lease store is out of reach: nobody runs unfenced unless told to, and nothing is lost."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from bench.waiting import wait_until
from bench.world import Bench


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=6.0)
    bench.worker(concurrency=2)
    return bench


@contextmanager
def outage(bench):
    """The lease server is gone, with all it knew."""
    bench.leases.kill()
    try:
        yield
    finally:
        bench.leases.start()


def test_under_retry_the_body_waits_for_the_store(bench):
    key = bench.key()
    with outage(bench):
        result = bench.send("outage_retry", key, {"value": "done"})
        wait_until(lambda: result.state == "RETRY", what="put off because of the outage")
        assert bench.ledger.starts(key) == []
        assert "skip" not in str(result.info).lower()

    assert result.get(timeout=40) == "done"
    assert len(bench.ledger.starts(key)) == 1
    assert bench.ledger.facts("task_skipped", fence_key=f"job:{key}") == []


def test_an_outage_uses_up_neither_misses_nor_retries(bench):
    key = bench.key()
    with outage(bench):
        result = bench.send("default", key, {"then": "fail_then_return"})
        wait_until(lambda: result.state == "RETRY")

    assert bench.outcome(result, timeout=40) == "FAILURE"
    assert [fact["retries"] for fact in bench.ledger.starts(key)] == [0]
    assert not {"misses", "outages"} & set(bench.ledger.starts(key)[0]["headers"].get("fence", {}))


def test_under_raise_the_message_fails_with_store_unavailable(bench):
    key = bench.key()
    with outage(bench):
        result = bench.send("outage_raise", key)
        assert bench.outcome(result) == "FAILURE"

    assert type(result.result).__name__ == "StoreUnavailable"
    assert str(bench.leases.port) in str(result.result)
    assert bench.ledger.starts(key) == []


def test_under_run_the_body_runs_without_a_token(bench):
    key = bench.key()
    with outage(bench):
        result = bench.send("outage_run", key, {"value": "unfenced"})
        assert result.get(timeout=40) == "unfenced"

    assert bench.ledger.tokens(key) == [None]
    wait_until(lambda: f"job:{key}" in bench.workers[0].log, what="the log says so")


def test_a_store_that_hangs_is_out_of_reach_too(bench):
    key = bench.key()
    bench.leases.pause()
    try:
        result = bench.send("outage_raise", key)
        state = bench.outcome(result, timeout=40)
    finally:
        bench.leases.resume()

    assert state == "FAILURE"
    assert type(result.result).__name__ == "StoreUnavailable"
    assert bench.ledger.starts(key) == []


def test_a_run_survives_a_store_that_comes_back_empty_within_the_ttl(bench):
    key = bench.key()
    result, gate = bench.hold(key, task="lost_raise", value="done")
    token = bench.holder(key).token
    with outage(bench):
        pass
    wait_until(lambda: bench.holder(key), timeout=6, what="the lease was put back")
    assert bench.holder(key).token == token
    gate.open()

    assert result.get(timeout=20) == "done"


def test_a_finished_run_stays_finished_when_the_release_finds_no_store(bench):
    key = bench.key()
    result, gate = bench.hold(key, value="done")
    with outage(bench):
        gate.open()
        assert result.get(timeout=40) == "done"

    assert result.state == "SUCCESS"
    assert bench.send("retry", key, {"value": "next"}).get(timeout=40) == "next"
