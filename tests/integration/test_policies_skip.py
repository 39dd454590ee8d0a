"""The miss policies `Skip` and `Raise` on every broker."""

from __future__ import annotations

import pytest
from bench.waiting import wait_until

from celery_fence import is_skipped


@pytest.fixture
def bench(policy_bench):
    return policy_bench


def test_a_skipped_message_is_final_and_its_waiter_is_told(bench):
    key = bench.key()
    token = bench.occupy(key)
    result = bench.send("skip", key)

    assert is_skipped(result.get(timeout=20))
    assert result.state == "SUCCESS"
    assert bench.holder(key).token == token
    bench.vacate(key)
    assert bench.send("skip", key, {"value": "ran"}).get(timeout=20) == "ran"
    assert len(bench.ledger.starts(key)) == 1


def test_a_message_that_has_run_before_is_not_skipped_but_waits(bench):
    """Half-done work is never dropped."""
    key = bench.key()
    result = bench.send("skip", key, {"then": "retry", "countdown": 1, "value": "finished"})
    wait_until(lambda: bench.ledger.ends(key))
    bench.occupy(key)
    wait_until(lambda: bench.misses(key) >= 1)
    bench.vacate(key)

    assert result.get(timeout=40) == "finished"
    assert [fact["retries"] for fact in bench.ledger.starts(key)] == [0, 1]


def test_a_raised_miss_is_a_failure_and_the_next_message_is_not_affected(bench):
    key = bench.key()
    bench.occupy(key)
    failed = bench.send("raise", key)

    assert bench.outcome(failed) == "FAILURE"
    assert type(failed.result).__name__ == "Contended"
    bench.vacate(key)
    assert bench.send("raise", key, {"value": "ran"}).get(timeout=20) == "ran"


def test_the_record_says_so_when_the_key_is_held_by_a_lease_without_expiry(policy_bench):
    """A02: made by hand or by old code; nothing but an operator will free it."""
    key = policy_bench.key()
    policy_bench.lease_client.hset(policy_bench.store._names.lease(f"job:{key}".encode()), "owner", "by hand")
    skipped = policy_bench.send("skip", key).get(timeout=20)
    raised = policy_bench.send("raise", key)

    assert (skipped["holder_ttl"], skipped["since"]) == ("NO-TTL", None)
    assert policy_bench.outcome(raised) == "FAILURE"
    assert "NO-TTL" in str(raised.result)
    assert policy_bench.ledger.starts(key) == []
    policy_bench.vacate(key)
