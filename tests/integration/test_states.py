"""What a monitor sees: the states of celery-fence in Celery's event stream, hooks and log."""

from __future__ import annotations

import pytest
from bench.events import watching
from bench.waiting import wait_until
from bench.world import Bench


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=3.0)
    bench.worker(concurrency=2)
    return bench


@pytest.fixture(scope="module")
def monitor(bench):
    with watching(bench.app) as monitor:
        yield monitor


@pytest.fixture
def held(bench):
    key = bench.key("held")
    bench.occupy(key)
    yield key
    bench.vacate(key)


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ("skip", "SKIPPED"),
        ("skip_continue", "SKIPPED"),
        ("dead_letter", "DEAD_LETTERED"),
        ("raise", "FAILURE"),
    ],
)
def test_the_final_state_of_a_miss_is_seen(bench, monitor, held, policy, state):
    result = bench.send(policy, held)
    monitor.wait_for_state(result.id, state)

    task = monitor.state.tasks[result.id]
    assert task.name == policy
    assert f"job:{held}" in f"{task.result} {task.exception}"


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_nothing_that_comes_later_hides_the_state(bench, monitor, held, policy):
    result = bench.send(policy, held)
    state = {"skip": "SKIPPED", "dead_letter": "DEAD_LETTERED"}[policy]
    monitor.wait_for_state(result.id, state)
    after = bench.send("retry", bench.key())
    monitor.wait_for_state(after.id, "SUCCESS")

    assert monitor.state_of(result.id) == state
    assert "task-succeeded" not in monitor.kinds(result.id)


def test_a_waiting_message_is_seen_as_retry_with_key_and_holder(bench, monitor, held):
    result = bench.send("retry", held)
    monitor.wait_for_state(result.id, "RETRY")
    reason = monitor.of(result.id, "task-retried")[0]["exception"]
    bench.vacate(held)
    monitor.wait_for_state(result.id, "SUCCESS")

    assert f"job:{held}" in reason
    assert "the test" in reason


def test_a_lost_run_is_seen_as_a_failure_that_says_lease_lost(bench, monitor):
    key = bench.key()
    result, _ = bench.hold(key, task="lost_raise")
    bench.vacate(key)
    monitor.wait_for_state(result.id, "FAILURE")

    assert "LeaseLost" in monitor.state.tasks[result.id].exception


@pytest.mark.parametrize(("policy", "level"), [("skip", "INFO"), ("retry", "INFO"), ("dead_letter", "ERROR")])
def test_a_miss_is_one_log_line_at_the_right_level_without_a_traceback(bench, held, policy, level):
    bench.send(policy, held)
    lines = wait_until(lambda: log_lines(bench, held, level), what=f"a line at {level}")
    bench.vacate(held)

    assert f"job:{held}" in lines[0]
    assert "the test" in "".join(log_lines(bench, held)), "the holder is named"
    if level == "INFO":  # a dead letter is a failure, which Celery logs as any other
        assert log_lines(bench, held, "WARNING") + log_lines(bench, held, "ERROR") == []
        assert "Traceback" not in bench.workers[0].log.partition(held)[2].partition("received")[0]


def log_lines(bench, key, level=""):
    return [line for line in bench.workers[0].log.splitlines() if key in line and level in line]


def test_a_skip_works_with_events_switched_off(make_bench):
    bench = make_bench(fence_ttl=30.0, worker_send_task_events=False)
    bench.worker(concurrency=1, events=False)
    key = bench.key()
    bench.occupy(key)

    assert bench.send("skip", key).get(timeout=20)["key"] == f"job:{key}"


@pytest.mark.parametrize(
    ("signal", "policy"),
    [
        ("lease_missed", "skip"),
        ("task_skipped", "skip"),
        ("task_dead_lettered", "dead_letter"),
        ("lease_missed", "raise"),
    ],
)
def test_each_miss_is_signalled_with_its_key_and_its_task(bench, held, signal, policy):
    result = bench.send(policy, held)
    wait_until(result.ready)
    facts = wait_until(lambda: bench.ledger.facts(signal, fence_key=f"job:{held}"))

    assert [fact["task"] for fact in facts] == [policy]
