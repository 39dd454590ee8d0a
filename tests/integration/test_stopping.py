"""
A run that lost its lease is stopped, in every pool, as far as the pool can interrupt its body.

The table of what can be interrupted is docs/stopping.md; here each of its promises is kept.
"""

from __future__ import annotations

import os
import signal

import pytest
from bench.pools import add_tasks
from bench.waiting import stays_true, wait_until
from bench.world import Bench

POOLS = ("prefork", "solo", "threads", "gevent", "eventlet")
GREEN = ("gevent", "eventlet")
TTL = 1.5
# Longer than any wait below: only an interruption ends such a body in time.
LONG = 60
SHORT = 2
INTERRUPTED = {
    "prefork": ("sleep", "socket", "blpop", "compute"),
    "solo": ("sleep", "socket", "blpop", "compute"),
    "threads": ("compute",),
    "gevent": ("sleep", "socket", "blpop"),
    "eventlet": ("sleep", "socket", "blpop"),
}
EASY = {pool: kinds[0] for pool, kinds in INTERRUPTED.items()}


@pytest.fixture(scope="module", params=POOLS)
def bench(make_bench, request) -> Bench:
    return start(make_bench, request.param)


def start(make_bench, pool) -> Bench:
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    bench.pool = pool
    bench.worker(pool=pool, concurrency=1 if pool == "solo" else 3, app="bench.pools")
    return bench


def lose(bench, task, plan):
    """Start *task* and take its lease away; returns its result and its key."""
    key = bench.key()
    result = bench.send(task, key, plan)
    wait_until(lambda: bench.ledger.facts("holding", key=key), what=f"{key} is held")
    bench.vacate(key)
    return result, key


def outcomes(bench, key):
    return [fact["outcome"] for fact in bench.ledger.ends(key)]


def serves(bench):
    """Whether the worker still takes messages and acknowledges them."""
    return bench.send("retry", bench.key(), {"value": "still here"}).get(timeout=20) == "still here"


@pytest.mark.parametrize("kind", ["sleep", "socket", "blpop", "compute"])
def test_what_the_pool_can_interrupt_is_stopped_at_once(bench, kind):
    if kind not in INTERRUPTED[bench.pool]:
        pytest.skip(f"also on CI: {bench.pool} can't interrupt it (docs/stopping.md)")
    result, key = lose(bench, "lost_raise", {kind: LONG})

    assert bench.outcome(result, timeout=10) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    assert outcomes(bench, key) == ["LeaseLost"]
    assert serves(bench)


def test_a_thread_that_waits_in_c_is_stopped_when_it_returns(make_bench):
    bench = start(make_bench, "threads")
    for kind in ("sleep", "socket", "blocks"):
        result, key = lose(bench, "lost_raise", {kind: SHORT})

        assert bench.outcome(result, timeout=10) == "FAILURE", kind
        assert outcomes(bench, key) == ["LeaseLost"], kind


@pytest.mark.parametrize("kind", ["compute", "blocks", "grips"])
def test_what_nothing_can_interrupt_is_told_before_its_next_guarded_step(bench, kind):
    """The loss is seen on the local clock, without I/O: also where even the heartbeat stood still."""
    key = bench.key()
    result = bench.send("lost_raise", key, {kind: 2 * TTL, "asks": True})
    wait_until(lambda: bench.ledger.facts("holding", key=key))
    if kind != "grips":  # the heartbeat lives, so the lease has to be taken away
        bench.vacate(key)

    assert bench.outcome(result, timeout=10) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    assert serves(bench)


def test_under_retry_the_message_runs_again_with_a_higher_token(bench):
    plan = {EASY[bench.pool]: LONG, "once": True, "value": "second time"}
    result, key = lose(bench, "lost_retry", plan)

    assert result.get(timeout=20) == "second time"
    first, second = bench.ledger.tokens(key)
    assert second > first
    assert outcomes(bench, key) == ["LeaseLost", "return"]


def test_under_flag_nothing_is_stopped_and_the_result_counts(bench):
    key = bench.key()
    result, gate = bench.hold(key, task="lost_flag", value="finished")
    bench.vacate(key)
    wait_until(lambda: bench.ledger.facts("lease_lost", fence_key=f"job:{key}"), what="the loss was noticed")
    assert stays_true(lambda: not bench.ledger.ends(key), during=0.3)
    gate.open()

    assert result.get(timeout=20) == "finished"


def test_the_lease_of_a_block_inside_the_run_stops_it_too(bench):
    key, inner = bench.key(), bench.key()
    result = bench.send("lost_raise", key, {"inner": {"key": inner, EASY[bench.pool]: LONG}})
    wait_until(lambda: bench.ledger.facts("holding", key=inner))
    bench.vacate(inner)

    assert bench.outcome(result, timeout=10) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    assert wait_until(lambda: bench.holder(key) is None, timeout=TTL / 2)


def test_a_lease_held_too_long_stops_its_run(bench):
    key = bench.key()
    result = bench.send("held", key, {EASY[bench.pool]: LONG})

    assert bench.outcome(result, timeout=10) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    assert result.result.args[0].count("lock_max_hold") == 1


def test_a_stopped_run_leaves_its_successors_lease_and_result_alone(bench):
    if bench.pool == "solo":
        pytest.skip("also on CI: a solo worker runs one body at a time")
    result, key = lose(bench, "lost_raise", {EASY[bench.pool]: LONG})
    successor, gate = bench.hold(key, value="successor")
    assert bench.outcome(result, timeout=10) == "FAILURE"
    holder = bench.holder(key)
    gate.open()

    assert holder.token == bench.ledger.tokens(key)[-1]
    assert successor.get(timeout=20) == "successor"


def test_a_frozen_worker_finds_its_lease_lost_when_it_wakes(bench):
    """SIGSTOP beyond the TTL while a successor runs elsewhere; the body asks before each step, without I/O."""
    if bench.pool == "prefork":
        pytest.skip("also on CI: test_loss.py freezes the pool's process")
    key, gate = bench.key(), bench.gate()
    result = bench.send("lost_raise", key, {"until_lost": LONG})
    wait_until(lambda: bench.ledger.facts("holding", key=key))
    pid = bench.workers[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        # On a queue of its own: the frozen worker still waits for the next message of the common one.
        other = bench.worker(
            pool="solo", concurrency=1, app="bench.pools", options=["-Q", f"{bench.queue}-2"]
        )
        plan = {"value": "successor", "gate": gate.path.name}
        successor = bench.send("retry", key, plan, queue=f"{bench.queue}-2")
        wait_until(lambda: len(bench.ledger.starts(key)) == 2, timeout=20, what="a successor runs")
    finally:
        os.kill(pid, signal.SIGCONT)

    assert bench.outcome(result, timeout=20) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    gate.open()
    assert successor.get(timeout=20) == "successor"
    first, second = bench.ledger.tokens(key)
    assert second > first
    other.stop()


@pytest.mark.parametrize("pool", ["threads", *GREEN])
def test_many_losses_at_the_very_end_of_bodies_lose_no_message(make_bench, pool):
    """Each lease is lost about when its body ends: whatever came first, every message ends and is acknowledged."""
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    bench.worker(pool=pool, concurrency=8, app="bench.pools")
    # Just as long as its lock_max_hold, from a little less to a little more.
    plans = [{EASY[pool]: 1.5 + (number - 20) / 500} for number in range(40)]
    results = [bench.send("held", bench.key(), plan) for plan in plans]

    assert {bench.outcome(result, timeout=60) for result in results} <= {"SUCCESS", "FAILURE"}
    wait_until(lambda: bench.broker_client.zcard("unacked_index") == 0, what="every message is acknowledged")
    assert serves(bench)
