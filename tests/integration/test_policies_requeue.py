"""The miss policy `Requeue` on every broker: to the back of the queue, and without spinning."""

from __future__ import annotations

import pytest
from bench.waiting import wait_until


@pytest.fixture
def bench(policy_bench):
    return policy_bench


def test_other_work_goes_on_while_a_message_goes_round(bench):
    key, other = bench.key(), bench.key()
    bench.occupy(key)
    waiter = bench.send("requeue", key, {"value": "waited"})
    wait_until(lambda: bench.misses(key) >= 1)
    others = [bench.send("plain", other, {"value": n}) for n in range(5)]

    assert [result.get(timeout=20) for result in others] == list(range(5))
    assert bench.ledger.starts(key) == []
    bench.vacate(key)
    assert waiter.get(timeout=40) == "waited"


def test_a_message_alone_in_its_queue_does_not_spin(bench):
    key = bench.key()
    bench.occupy(key)
    result = bench.send("requeue", key)
    wait_until(lambda: bench.misses(key) >= 6, timeout=60, what="six misses")
    first, *_, sixth = bench.ledger.facts("lease_missed", fence_key=f"job:{key}")[:6]
    bench.vacate(key)
    result.get(timeout=40)

    assert sixth["at"] - first["at"] > 2.0, "more than two or three misses a second"


def test_each_of_five_waiters_ends_exactly_once_under_its_own_id(bench):
    key = bench.key()
    bench.occupy(key)
    results = [bench.send("requeue", key, {"value": n}, headers={"x-tenant": "7"}) for n in range(5)]
    wait_until(lambda: bench.misses(key) >= 10, timeout=60)
    bench.vacate(key)

    assert [result.get(timeout=60) for result in results] == list(range(5))
    starts = bench.ledger.starts(key)
    assert sorted(fact["task_id"] for fact in starts) == sorted(result.id for result in results)
    assert {(fact["retries"], fact["headers"]["x-tenant"]) for fact in starts} == {(0, "7")}
    assert bench.ledger.overlaps(key) == []
