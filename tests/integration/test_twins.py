"""
Copies of one message (Redis redelivers after its visibility timeout), and retries that overtake.

A copy waits: it is no other piece of work, so it is never skipped, failed or written about.
"""

from __future__ import annotations

import os
import signal

import pytest
from bench.events import watching
from bench.messages import is_left
from bench.waiting import wait_until
from bench.world import Bench

EAGER_BROKER = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=2.0, broker_transport_options=EAGER_BROKER)
    first, second = bench.launch(concurrency=2), bench.launch(concurrency=2)
    first.await_ready()
    second.await_ready()
    return bench


@pytest.mark.parametrize("policy", ["retry", "requeue", "skip", "dead_letter", "raise"])
def test_a_copy_of_a_running_message_waits_and_nothing_is_written_about_it(bench, policy):
    key = bench.key()
    with watching(bench.app) as monitor:
        result, gate = bench.hold(key, task=policy, value="done")
        wait_until(lambda: len(monitor.of(result.id, "task-received")) >= 3, what="two copies were delivered")
        assert result.state not in ("RETRY", "SUCCESS", "FAILURE")
        assert len(bench.ledger.starts(key)) == 1
        gate.open()
        value = result.get(timeout=20)
        told = set(monitor.kinds(result.id))

    assert value == "done"
    assert result.state == "SUCCESS"
    assert not told & {
        "task-retried",
        "task-skipped",
        "task-dead_lettered",
        "task-failed",
        "task-rejected",
    }, told
    assert bench.ledger.overlaps(key) == []


@pytest.mark.parametrize("policy", ["retry", "skip", "raise", "dead_letter"])
def test_a_retry_that_overtakes_its_predecessors_release_waits_for_it(bench, policy):
    key, gate = bench.key(), bench.gate()
    plan = {"then": "retry_then_wait", "after": gate.path.name, "value": "finished"}
    with watching(bench.app) as monitor:
        result = bench.send(policy, key, plan)
        wait_until(lambda: bench.ledger.facts("retry_sent", task_id=result.id))
        wait_until(lambda: len(monitor.of(result.id, "task-received")) >= 3, what="the retry came twice")
        assert len(bench.ledger.starts(key)) == 1
        gate.open()

        assert result.get(timeout=20) == "finished"
        assert not set(monitor.kinds(result.id)) & {"task-skipped", "task-failed", "task-dead_lettered"}
    assert 1 in [fact["retries"] for fact in bench.ledger.starts(key)]
    assert bench.ledger.overlaps(key) == []


def test_another_message_of_the_same_key_is_no_twin(bench):
    key = bench.key()
    result, gate = bench.hold(key, value="first")

    assert "first" not in str(bench.send("skip", key).get(timeout=20))
    gate.open()
    assert result.get(timeout=20) == "first"


def test_the_same_task_id_sent_twice_on_purpose_is_two_messages(bench):
    key = bench.key()
    result, gate = bench.hold(key, value="first")
    again = bench.send("raise", key, task_id=result.id)

    assert bench.outcome(again) == "FAILURE"
    gate.open()


def test_a_copy_runs_when_the_holders_whole_worker_was_killed(make_bench):
    bench = make_bench(fence_ttl=2.0, broker_transport_options=EAGER_BROKER)
    doomed = bench.worker(concurrency=1)
    key = bench.key()
    result, gate = bench.hold(key, value="done")
    bench.worker(concurrency=1)
    with watching(bench.app) as monitor:
        wait_until(
            lambda: monitor.of(result.id, "task-received"), what="a copy was delivered to the second worker"
        )
    doomed.kill(signal.SIGKILL)
    wait_until(lambda: len(bench.ledger.starts(key)) == 2, timeout=20, what="the copy runs")
    gate.open()

    assert result.get(timeout=20) == "done"
    first, second = bench.ledger.tokens(key)[:2]
    assert second > first


def test_a_frozen_run_whose_copy_took_over_ends_silently(bench):
    """The copy has the same task id, so whatever the late one stored would be taken for the copy's result."""
    key = bench.key()
    with watching(bench.app) as monitor:
        result, gate = bench.hold(key, value="done")
        frozen = bench.ledger.starts(key)[0]["pid"]
        os.kill(frozen, signal.SIGSTOP)
        try:
            wait_until(lambda: len(bench.ledger.starts(key)) == 2, timeout=20, what="the copy took over")
        finally:
            os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: bench.ledger.facts("end", key=key, pid=frozen), what="the late run was stopped")
        wait_until(lambda: bench.ledger.facts("task_postrun", task_id=result.id, pid=frozen))
        assert result.state not in ("RETRY", "FAILURE", "SUCCESS")
        gate.open()

        assert result.get(timeout=20) == "done"
        assert not set(monitor.kinds(result.id)) & {"task-retried", "task-failed"}
    assert [fact["outcome"] for fact in bench.ledger.facts("end", key=key, pid=frozen)] == ["LeaseLost"]


def test_a_wait_longer_than_the_visibility_timeout_does_not_multiply_the_message(bench):
    """A countdown beyond the visibility timeout makes Redis deliver a message again and again."""
    key = bench.key()
    bench.occupy(key, ttl=9)
    result = bench.send("default", key, {"value": "once"})
    assert result.get(timeout=40) == "once"
    wait_until(lambda: not is_left(bench, result.id), what="no copy is under way any more")

    # By the workers' own word: an event may get lost.
    received = sum(worker.log.count(f"[{result.id}] received") for worker in bench.workers)
    assert received == bench.misses(key) + 1
    assert len(bench.ledger.starts(key)) == 1
