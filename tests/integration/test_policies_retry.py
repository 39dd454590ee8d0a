"""The miss policy `Retry` on every broker: the same message comes again, with nothing lost or added."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from bench.waiting import wait_until

from celery_fence import is_skipped

KEPT = (
    "callbacks",
    "errbacks",
    "expires",
    "ignore_result",
    "shadow",
    "stamped_headers",
    "stamps",
    "timelimit",
    "replaced_task_nesting",
)


@pytest.fixture
def bench(policy_bench):
    return policy_bench


def wait_for_misses(bench, key, count):
    wait_until(lambda: bench.misses(key) >= count, timeout=40, what=f"{count} misses on {key}")


def test_a_message_that_misses_waits_and_then_runs_once(bench):
    key = bench.key()
    _, gate = bench.hold(key)
    second = bench.send("retry", key, {"value": "second"})
    wait_for_misses(bench, key, 3)
    assert second.state == "RETRY"
    gate.open()

    assert second.get(timeout=40) == "second"
    assert len(bench.ledger.starts(key)) == 2
    assert bench.ledger.overlaps(key) == []


def test_the_default_policy_does_the_same(bench):
    key = bench.key()
    _, gate = bench.hold(key)
    second = bench.send("default", key, {"value": "second"})
    wait_for_misses(bench, key, 1)
    gate.open()

    assert second.get(timeout=40) == "second"


def test_everything_else_of_the_message_is_kept(bench):
    options = {
        "headers": {"x-tenant": "7"},
        "priority": 3,
        "expires": datetime.now(UTC) + timedelta(hours=1),
        "soft_time_limit": 50,
        "time_limit": 60,
        "shadow": "shadowed",
        "link": bench.app.tasks["join"].s(key="kept-link"),
        "link_error": bench.app.tasks["errback"].s(key="kept-error"),
    }
    free, key = bench.key(), bench.key()
    bench.send("retry", free, **options).get(timeout=20)
    bench.occupy(key)
    result = bench.send("retry", key, **options)
    wait_for_misses(bench, key, 2)
    bench.vacate(key)
    result.get(timeout=40)
    (unhindered,), (waited,) = bench.ledger.starts(free), bench.ledger.starts(key)

    assert {name: waited["message"][name] for name in KEPT} == {
        name: unhindered["message"][name] for name in KEPT
    }
    assert waited["headers"]["x-tenant"] == "7"
    assert (waited["task_id"], waited["message"]["root_id"]) == (result.id, result.id)
    if bench.kind != "quorum":  # quorum queues of this RabbitMQ have no priorities
        assert (
            waited["message"]["delivery_info"]["priority"]
            == unhindered["message"]["delivery_info"]["priority"]
            == 3
        )


def test_stamps_are_kept(bench):
    key = bench.key()
    bench.occupy(key)
    signature = bench.app.tasks["retry"].si(key)
    signature.stamp(tenant="seven", append_stamps=False)
    result = signature.apply_async()
    wait_for_misses(bench, key, 1)
    bench.vacate(key)
    result.get(timeout=40)

    assert bench.ledger.starts(key)[0]["message"]["stamps"] == {"tenant": "seven"}


@pytest.mark.parametrize(("serializer", "type_name"), [("json", "list"), ("pickle", "tuple")])
def test_the_serializer_of_the_call_is_kept(bench, serializer, type_name):
    key = bench.key()
    bench.occupy(key)
    result = bench.send("retry", key, {"then": "type", "value": (1, 2)}, serializer=serializer)
    wait_for_misses(bench, key, 1)
    bench.vacate(key)

    assert result.get(timeout=40) == type_name


def test_misses_do_not_use_up_the_tasks_own_retries(bench):
    key = bench.key()
    bench.occupy(key)
    result = bench.send("auto", key, {"then": "fail_then_return", "value": "done"})
    wait_for_misses(bench, key, 3)
    bench.vacate(key)

    assert result.get(timeout=40) == "done"
    assert [fact["retries"] for fact in bench.ledger.starts(key)] == [0, 1]


def test_the_budget_starts_anew_once_the_lease_was_taken(bench):
    """With one budget for both waits the second one would be dead-lettered."""
    key = bench.key()
    bench.occupy(key)
    result = bench.send("attempts", key, {"then": "retry", "value": "done"})
    wait_for_misses(bench, key, 2)
    bench.vacate(key)
    wait_until(lambda: bench.ledger.ends(key), what="the first run asked for a retry")
    bench.occupy(key)
    wait_for_misses(bench, key, 4)
    bench.vacate(key)

    assert result.get(timeout=40) == "done"
    assert [fact["retries"] for fact in bench.ledger.starts(key)] == [0, 1]


def test_after_max_wait_the_message_is_dead_lettered(bench):
    key = bench.key()
    bench.occupy(key)
    result = bench.send("bounded", key)

    assert bench.outcome(result) == "FAILURE"
    assert type(result.result).__name__ == "DeadLettered"
    assert f"job:{key}" in str(result.result)
    assert bench.misses(key) > 1
    assert bench.ledger.starts(key) == []
    bench.vacate(key)


def test_after_max_attempts_the_then_policy_follows(bench):
    key = bench.key()
    bench.occupy(key)
    result = bench.send("bounded_skip", key)

    assert is_skipped(result.get(timeout=40))
    assert bench.misses(key) == 3
    bench.vacate(key)


def test_a_message_that_expires_while_it_waits_is_revoked_and_never_runs(bench):
    key = bench.key()
    bench.occupy(key)
    result = bench.send("retry", key, expires=2)
    state = bench.outcome(result)
    bench.vacate(key)

    assert state == "REVOKED"
    assert bench.misses(key) > 0
    assert bench.ledger.starts(key) == []


def test_a_token_in_the_message_is_replaced(bench):
    key = bench.key()
    bench.app.send_task("retry", (key,), {"fencing_token": 999}).get(timeout=20)
    bench.send("retry", key).get(timeout=20)
    forged, honest = bench.ledger.tokens(key)

    assert 999 < forged < honest
