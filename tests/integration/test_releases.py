"""A release that isn't answered at once: what the finished run, the next one and the observers see."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from bench.bad_day import BadDay, unacknowledged
from bench.waiting import wait_until

from celery_fence.stores.redis.client import ATTEMPTS
from celery_fence.testing.servers import embedded_server

TTL = 40.0
"""So long that one try of a call to the lease server, an eighth of it, lasts as long as others take to come and go."""

OWED = "couldn't be made up for yet"
"""What a worker says when it has asked in vain for what a run owes."""


@pytest.fixture(scope="module")
def world(make_bench) -> Iterator[BadDay]:
    with ExitStack() as stack:
        yield BadDay(make_bench(fence_ttl=TTL), stack)


def test_a_run_whose_release_lost_its_reply_is_not_told_of_a_loss_when_others_have_had_the_key_since(world):
    """The server knows only who released last, and that is another by the time it is asked again."""
    key, bench = world.bench.key(), world.bench
    world.send("near", "patient", bench.key()).get(timeout=30)  # the server knows the scripts
    finisher, gate = world.hold("far", key, value="finished")
    world.far.hold_replies()
    gate.open()
    wait_until(lambda: bench.holder(key) is None, what="the release was carried out")
    assert world.send("near", "patient", key, value="next").get(timeout=30) == "next"
    wait_until(lambda: bench.holder(key) is None, what="its successor has released, too")
    world.far.reset()
    world.far.heal()

    assert finisher.get(timeout=30) == "finished"
    released = wait_until(
        lambda: [f["outcome"] for f in bench.ledger.facts("lease_released", fence_key=f"job:{key}")][1:],
        what="both releases are told of",
    )
    assert released == ["released"]
    assert bench.ledger.facts("lease_lost", fence_key=f"job:{key}") == []
    assert "was no longer ours" not in world.far_worker.log


def test_a_soft_time_limit_that_strikes_in_the_release_changes_no_outcome(world):
    """Its signal, sent while the run waits for an answer that doesn't come."""
    key, bench = world.bench.key(), world.bench
    world.send("near", "patient", bench.key()).get(timeout=30)  # the server knows the scripts
    result, gate = world.hold("far", key, value="done")
    world.far.hold_replies()
    gate.open()
    wait_until(lambda: bench.holder(key) is None, what="the release was carried out")
    os.kill(bench.ledger.starts(key)[0]["pid"], signal.SIGUSR1)
    value = result.get(timeout=30)
    world.far.reset()
    world.far.heal()

    assert value == "done"
    assert len(bench.ledger.starts(key)) == 1
    wait_until(lambda: f"Made up for the release of 'job:{key}'" in world.far_worker.log)


def test_a_soft_time_limit_that_strikes_before_the_lease_is_there_brings_the_message_back(world):
    key, bench = world.bench.key(), world.bench
    world.far.hold()
    result = bench.send("patient", key, {"value": "done"}, queue=world.queue("far"), soft_time_limit=1)
    wait_until(lambda: result.state == "RETRY", timeout=30, what="it comes back")
    reason = str(result.result)
    world.far.reset()
    world.far.heal()

    assert "The soft time limit struck before the lease store had answered" in reason
    assert result.get(timeout=60) == "done"
    assert len(bench.ledger.starts(key)) == 1
    wait_until(lambda: bench.holder(key) is None, what="its key is free")


@pytest.fixture
def order(world):
    return world.bench.key("order")


@pytest.fixture
def begun(world, order):
    """Work for *order* that has begun on the far worker, and what is needed to end it and to bring a copy."""

    def begin(key):
        gate = world.bench.gate()
        result = world.send("far", "once", key, order=order, gate=gate.path.name, value="done")
        wait_until(lambda: world.bench.ledger.facts("holding", key=key), what="the work has begun")
        return result, gate, unacknowledged(world.bench, result.id)

    return begin


def starts(world, order):
    return [
        fact for fact in world.bench.ledger.facts("start") if fact["message"]["args"][1].get("order") == order
    ]


def test_a_run_that_ends_while_the_store_restarts_loses_neither_its_end_nor_its_record(world, begun, order):
    """And its key is free at once, not when the TTL ends."""
    key, log_before = world.bench.key(), len(world.far_worker.log)
    result, gate, message = begun(key)
    world.server.kill()
    gate.open()
    assert result.get(timeout=30) == "done"
    wait_until(
        lambda: OWED in world.far_worker.log[log_before:],
        what="the worker has tried again",
    )
    world.server.start()
    back_at = time.monotonic()
    wait_until(lambda: world.bench.holder(key) is None, timeout=TTL / 2, what="the key is free")

    assert time.monotonic() - back_at < TTL / 4
    assert world.bench.store.record(f"order:{order}").done is not None
    world.bench.broker_client.lpush(world.queue("near"), json.dumps(message))
    wait_until(
        lambda: f"A copy of once[{result.id}]" in world.near_worker.log, what="the copy ended silently"
    )
    assert world.send("near", "once", key, order=order, value="again").get(timeout=30) == "done"
    assert len(starts(world, order)) == 1
    assert starts(world, order)[0]["pid"] in world.far_worker.child_pids()
    assert world.bench.ledger.facts("lease_lost", fence_key=f"job:{key}") == []


def test_a_worker_that_is_stopped_waits_for_what_its_runs_owe(world, begun, order):
    key, log_before = world.bench.key(), len(world.far_worker.log)
    result, gate, _ = begun(key)
    world.far.go_down()
    gate.open()
    assert result.get(timeout=30) == "done"
    wait_until(
        lambda: OWED in world.far_worker.log[log_before:],
        what="the worker has tried again",
    )
    process = starts(world, order)[0]["pid"]
    world.far_worker.kill(signal.SIGTERM)
    wait_until(lambda: world.bench.ledger.facts("process_shutdown", pid=process), what="the process ends")
    asked = world.far.accepted
    # Two tries: that is longer than a pool process lives by itself after its last task.
    wait_until(lambda: world.far.accepted >= asked + 2 * ATTEMPTS, what="it asks again all the while")
    world.far.heal()
    world.far_worker.await_exit()

    assert world.bench.holder(key) is None
    assert world.bench.store.record(f"order:{order}").done is not None
    assert "another message would do it again" not in world.far_worker.log[log_before:].partition("Warm")[2]


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_what_a_run_owes_is_made_up_for_in_the_other_pools_too(pool, make_bench):
    with embedded_server(persistent=True) as server:
        bench = make_bench(fence_ttl=TTL)
        bench.leases = server
        worker, key = bench.worker(pool=pool), bench.key()
        result, gate = bench.hold(key, "once", order=key, value="done")
        server.kill()
        gate.open()
        assert result.get(timeout=30) == "done"
        wait_until(lambda: OWED in worker.log, what="the worker has tried again")
        server.start()
        wait_until(lambda: bench.holder(key) is None, timeout=TTL / 2, what="the key is free")

        assert bench.store.record(f"order:{key}").done is not None
        wait_until(lambda: f"Made up for the release of 'job:{key}'" in worker.log, what="it is told of")
        bench.stop_workers()
