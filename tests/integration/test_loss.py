"""A holder frozen beyond its TTL wakes up: a successor has a higher token, and the run is stopped."""

from __future__ import annotations

import os
import signal

import pytest
from bench.waiting import wait_until
from bench.world import Bench

TTL = 1.5
# Longer than any wait below: only an interrupt ends such a body in time.
LONG = 60
BODIES = {"sleep": LONG, "socket": LONG, "spin": "never"}


@pytest.fixture(scope="module", params=["prefork", "solo"])
def bench(make_bench, request) -> Bench:
    bench = make_bench(fence_ttl=TTL)
    first, second = (bench.launch(pool=request.param, concurrency=1) for _ in range(2))
    first.await_ready()
    second.await_ready()
    return bench


def freeze_until_replaced(bench, task, plan):
    """Run *task*, freeze its process until a successor runs on the key, and wake it."""
    key, gate = bench.key(), bench.gate()
    result = bench.send(task, key, plan)
    wait_until(lambda: bench.ledger.facts("holding", key=key), what="the first run is in its body")
    pid = bench.ledger.starts(key)[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        successor = bench.send("retry", key, {"value": "successor", "gate": gate.path.name})
        wait_until(lambda: len(bench.ledger.starts(key)) == 2, timeout=20, what="a successor runs")
    finally:
        os.kill(pid, signal.SIGCONT)
    return result, successor, gate, key


@pytest.mark.parametrize("body", BODIES)
def test_under_raise_a_woken_run_fails_with_lease_lost_whatever_it_does(bench, body):
    result, successor, gate, key = freeze_until_replaced(bench, "lost_raise", {body: BODIES[body]})

    assert bench.outcome(result, timeout=10) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    gate.open()
    assert successor.get(timeout=20) == "successor"
    first, second = bench.ledger.tokens(key)
    assert second > first


@pytest.mark.parametrize("body", BODIES)
def test_under_retry_a_woken_run_is_stopped_and_its_message_runs_again(bench, body):
    plan = {body: BODIES[body], "once": True, "value": "second time"}
    result, successor, gate, key = freeze_until_replaced(bench, "lost_retry", plan)
    wait_until(lambda: result.state == "RETRY", timeout=10, what="the run was stopped and sent again")
    assert [fact["outcome"] for fact in bench.ledger.ends(key)] == ["LeaseLost"]
    gate.open()

    assert successor.get(timeout=20) == "successor"
    assert result.get(timeout=40) == "second time"
    first, second, third = bench.ledger.tokens(key)
    assert first < second < third


def test_autoretry_of_everything_does_not_catch_the_loss(bench):
    key = bench.key()
    result = bench.send("auto_all", key, {"sleep": LONG})
    wait_until(lambda: bench.ledger.facts("holding", key=key))
    bench.vacate(key)

    assert bench.outcome(result, timeout=10) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    assert len(bench.ledger.starts(key)) == 1


def test_under_flag_a_woken_run_goes_on_and_is_told_when_it_asks(bench):
    result, successor, gate, key = freeze_until_replaced(bench, "lost_flag", {"until_lost": LONG})

    assert bench.outcome(result, timeout=10) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    gate.open()
    assert successor.get(timeout=20) == "successor"
    assert bench.ledger.facts("lease_lost", fence_key=f"job:{key}")


def test_under_flag_a_run_that_does_not_ask_ends_as_it_would(bench):
    key = bench.key()
    result, gate = bench.hold(key, task="lost_flag", value="finished")
    bench.vacate(key)
    wait_until(lambda: bench.ledger.facts("lease_lost", fence_key=f"job:{key}"), what="the loss was noticed")
    gate.open()

    assert result.get(timeout=20) == "finished"


def test_a_release_by_a_late_holder_leaves_its_successor_alone(bench):
    _, successor, gate, key = freeze_until_replaced(bench, "lost_raise", {"sleep": LONG})
    wait_until(lambda: bench.ledger.ends(key), timeout=10, what="the late holder ended")
    holder = bench.holder(key)
    gate.open()

    assert holder is not None
    assert holder.token == bench.ledger.tokens(key)[1]
    assert successor.get(timeout=20) == "successor"
