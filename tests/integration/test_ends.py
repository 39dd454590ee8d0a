"""How a prefork run can end from outside: limits, shutdown, killed children and workers."""

from __future__ import annotations

import os
import signal

import pytest
from bench.waiting import wait_until
from bench.world import Bench

TTL = 2.0


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=TTL)
    bench.worker(concurrency=2)
    return bench


@pytest.fixture(scope="module")
def patient(make_bench) -> Bench:
    """A bench whose TTL is longer than any test waits: what is free here was released."""
    bench = make_bench(fence_ttl=120.0)
    bench.worker(concurrency=2)
    return bench


def test_celerys_soft_limit_frees_the_key(patient):
    key = patient.key()
    result = patient.send("soft_limited", key, {"sleep": 20})

    assert patient.outcome(result) == "FAILURE"
    assert type(result.result).__name__ == "SoftTimeLimitExceeded"
    assert wait_until(lambda: patient.holder(key) is None, timeout=2)


def test_system_exit_in_the_body_frees_the_key(patient):
    key = patient.key()
    result = patient.send("retry", key, {"then": "exit"})

    assert patient.outcome(result) == "FAILURE"
    assert wait_until(lambda: patient.holder(key) is None, timeout=2)


def test_terminating_a_task_frees_the_key(patient):
    key = patient.key()
    result, _ = patient.hold(key)
    patient.app.control.revoke(result.id, terminate=True)

    assert patient.outcome(result) == "REVOKED"
    assert wait_until(lambda: patient.holder(key) is None, timeout=5)


def test_after_a_hard_limit_the_key_is_free_within_the_ttl(bench):
    key = bench.key()
    result = bench.send("hard_limited", key, {"sleep": 20})

    assert bench.outcome(result) == "FAILURE"
    wait_until(lambda: bench.holder(key) is None, timeout=2 * TTL, what="the limited task's key is free")
    assert bench.send("retry", key, {"value": "next"}).get(timeout=20) == "next"


def test_the_key_of_a_killed_child_is_free_within_the_ttl_and_the_message_runs_again(bench):
    key = bench.key()
    result, gate = bench.hold(key, task="survivor", value="done")
    os.kill(bench.ledger.starts(key)[0]["pid"], signal.SIGKILL)
    wait_until(lambda: len(bench.ledger.starts(key)) == 2, what="the redelivered message runs")
    gate.open()
    first, second = bench.ledger.tokens(key)

    assert result.get(timeout=20) == "done"
    assert second > first


def test_a_warm_shutdown_keeps_the_key_until_the_task_has_ended(make_bench):
    bench = make_bench(fence_ttl=TTL)
    leaving = bench.worker(concurrency=1)
    key = bench.key()
    first, gate = bench.hold(key, value="first")
    leaving.kill(signal.SIGTERM)
    renewals = len(bench.ledger.facts("lease_renewed"))
    bench.worker(concurrency=1)
    second = bench.send("retry", key, {"value": "second"})
    # Six renewals are twice the TTL.
    wait_until(
        lambda: len(bench.ledger.facts("lease_renewed")) >= renewals + 6, what="renewed during the shutdown"
    )
    assert len(bench.ledger.starts(key)) == 1
    gate.open()

    assert (first.get(timeout=20), second.get(timeout=20)) == ("first", "second")
    assert bench.ledger.overlaps(key) == []
    assert leaving.await_exit() == 0


def test_a_killed_solo_worker_renews_nothing_after_its_death(make_bench):
    bench = make_bench(fence_ttl=TTL)
    doomed = bench.worker(pool="solo", concurrency=1)
    key = bench.key()
    bench.hold(key)
    doomed.kill(signal.SIGKILL)

    wait_until(lambda: bench.holder(key) is None, timeout=TTL + 1, what="the dead worker's key is free")
