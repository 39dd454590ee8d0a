"""The block form in and beside workers, the hooks of a task class, and who holds a key."""

from __future__ import annotations

import threading

import pytest
from bench.waiting import wait_until
from bench.world import Bench

from celery_fence import Contended, hold


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=2.0)
    bench.worker(concurrency=2)
    return bench


def test_a_hold_inside_a_task_has_a_lease_of_its_own(bench):
    key = bench.key()
    own, inner = bench.app.tasks["holds"].delay("o", key).get(timeout=20)

    assert own != inner
    assert bench.holder(key) is None


def test_a_contended_hold_inside_a_task_is_a_miss_of_the_task(bench):
    key = bench.key()
    bench.occupy(key)
    result = bench.app.tasks["holds"].delay("o", key)
    wait_until(lambda: result.state == "RETRY")
    bench.vacate(key)

    assert len(result.get(timeout=20)) == 2


def test_a_web_view_and_a_task_exclude_each_other_through_the_tasks_own_key(bench):
    key = bench.key()
    with hold(bench.app.tasks["skip"].s(key), app=bench.app) as lease:
        skipped = bench.send("skip", key).get(timeout=20)
        lease.verify()
    _, gate = bench.hold(key)
    with pytest.raises(Contended, match=f"job:{key}"), hold("job:<key>", {"key": key}, app=bench.app):
        pytest.fail("the key is held by a worker")
    gate.open()

    assert skipped["key"] == f"job:{key}"


def test_a_waiting_hold_gets_the_key_once_the_task_has_ended(bench):
    key = bench.key()
    result, gate = bench.hold(key, value="done")
    opener = threading.Timer(0.3, gate.open)
    opener.start()
    with hold("job:<key>", {"key": key}, wait=10, app=bench.app) as lease:
        token = lease.token
        ended = bench.ledger.ends(key)
    opener.join()

    assert token > bench.ledger.tokens(key)[0]
    assert len(ended) == 1
    assert result.get(timeout=20) == "done"


def test_a_hold_outside_of_a_task_is_renewed_and_told_of_its_loss(bench):
    key = bench.key()
    with hold("job:<key>", {"key": key}, ttl=1.0, app=bench.app) as lease:
        wait_until(lambda: lease.held_for > 2.0, what="held for two TTLs")
        lease.check()
        assert bench.holder(key).token == lease.token
        bench.vacate(key)
        wait_until(lambda: lease.lost, timeout=3)

    assert bench.holder(key) is None


def test_anybody_can_ask_who_holds_the_key_of_a_call(bench):
    key = bench.key()
    task = bench.app.tasks["retry"]
    assert task.lease_holder(key) is None
    result, gate = bench.hold(key)
    holder = task.lease_holder(key=key)
    gate.open()

    assert holder.facts.task_id == result.id
    assert holder.facts.task_name == "retry"


def test_a_task_class_is_told_of_a_miss_with_its_arguments_and_the_holder(bench):
    key = bench.key()
    _, gate = bench.hold(key)
    bench.send("watchful", key).get(timeout=20)
    (told,) = bench.ledger.facts("on_miss")
    gate.open()

    assert (told["key"], told["args"][0], told["holder"]) == (f"job:{key}", key, "retry")


def test_a_task_class_is_told_at_once_when_the_lease_is_lost(bench):
    key = bench.key()
    _, gate = bench.hold(key, task="watchful")
    token = bench.holder(key).token
    bench.vacate(key)
    told = wait_until(lambda: bench.ledger.facts("on_lease_lost", key=f"job:{key}"), timeout=3)
    gate.open()

    assert [fact["token"] for fact in told] == [token]
