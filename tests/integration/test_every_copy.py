"""
Every kind of copy of a message, in every pool: what Redis delivers again after its visibility timeout,
what RabbitMQ does after a lost connection, a retry that overtakes its predecessor, and copies of what has ended.

Two workers of the pool: one has the run, the other gets the copy. A body runs once for each
delivery, and the result is that of the run that did the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bench.every_end import add_tasks
from bench.messages import is_left
from bench.waiting import wait_until
from bench.worker import Worker
from bench.world import Bench
from celery.result import AsyncResult
from kombu import Connection

from celery_fence.testing.proxy import Proxy

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
TTL = 1.5
EAGER_BROKER = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 1,  # a worker that is killed while it restores closes that off for this long
}


@pytest.fixture(scope="module", params=POOLS)
def bench(make_bench, request) -> Bench:
    """Where Redis is the broker; a worker was killed just after its run's release, before anything was stored."""
    bench = make_bench(fence_ttl=TTL, broker_transport_options=EAGER_BROKER)
    add_tasks(bench.app)
    bench.pool = request.param
    bench.cut_off = bench.key(), run_whose_worker_dies_after_its_release(bench)
    workers = [launch(bench), launch(bench)]
    if bench.pool in ("gevent", "eventlet"):
        # They never look for what to deliver again: kombu does it from an event loop that these pools don't have.
        workers.append(bench.launch(concurrency=1, options=["-Q", f"{bench.queue}.nothing"]))
    for worker in workers:
        worker.await_ready()
    return bench


def launch(bench: Bench, app: str = "bench.every_end", **how: Any) -> Worker:
    concurrency = 1 if bench.pool == "solo" else 2
    return bench.launch(app=app, pool=bench.pool, concurrency=concurrency, **how)


def run_whose_worker_dies_after_its_release(bench: Bench) -> AsyncResult:
    """In prefork the pool process dies first, and then the rest of the worker."""
    doomed = launch(bench, app="bench.boundaries").await_ready()
    plan = {"value": "done", "stops_at": "released", "victim": "child"}
    result = bench.send("survivor", bench.key(), plan)
    wait_until(
        lambda: bench.ledger.facts("boundary", task_id=result.id), what="the worker died at the boundary"
    )
    if doomed.alive and bench.pool == "prefork":
        doomed.kill()
    doomed.await_exit()
    return result


def received(bench: Bench, result: AsyncResult) -> int:
    """How often the workers say that they received the message."""
    return sum(worker.log.count(f"[{result.id}] received") for worker in bench.workers)


def starts(bench: Bench, result: AsyncResult) -> int:
    return len(bench.ledger.facts("start", task_id=result.id))


def test_a_copy_of_a_running_message_waits_and_ends_silently_when_the_run_is_noted(bench):
    key, gate = bench.key(), bench.gate()
    result = bench.send("watched", key, {"watch": gate.path.name, "value": "done"})
    wait_until(lambda: received(bench, result) >= 3, what="two copies were delivered")
    assert (starts(bench, result), result.state) == (1, "PENDING")
    gate.open()

    assert result.get(timeout=20) == "done"
    wait_until(lambda: not is_left(bench, result.id), what="the last copy is gone")
    assert (starts(bench, result), result.state, result.result) == (1, "SUCCESS", "done")
    assert all(look["ours"] for look in bench.ledger.facts("look", key=key))
    assert bench.holder(key) is None


def test_a_retry_that_overtakes_its_predecessor_waits_for_its_end(bench):
    key, gate = bench.key(), bench.gate()
    plan = {"then": "retry_then_wait", "after": gate.path.name, "value": "done"}
    result = bench.send("watched_dead_letter", key, plan)
    wait_until(lambda: bench.ledger.facts("retry_sent", task_id=result.id), what="the retry is on its way")
    wait_until(lambda: received(bench, result) >= 3, what="the retry came, and came back")
    assert starts(bench, result) == 1
    gate.open()

    assert result.get(timeout=20) == "done"
    assert [fact["retries"] for fact in bench.ledger.starts(key)] == [0, 1]
    assert bench.ledger.overlaps(key) == []


@pytest.mark.parametrize("task", ["watched_dead_letter", "replaced_skip"])
def test_a_replacement_that_overtakes_its_predecessor_waits_for_its_end(bench, task):
    key, gate = bench.key(), bench.gate()
    result = bench.send("replaced_skip", key, {"by": task, "after": gate.path.name, "value": "done"})
    wait_until(lambda: received(bench, result) >= 3, what="the replacement came, and came back")
    assert result.state == "PENDING"
    gate.open()

    assert result.get(timeout=20) == "done"
    assert bench.misses(key) == 0


def test_the_copy_of_a_run_that_ended_and_could_not_be_noted_stores_its_value_without_the_body(bench):
    _, result = bench.cut_off

    assert result.get(timeout=20) == "done"
    assert starts(bench, result) == 1
    wait_until(lambda: not is_left(bench, result.id), what="the last copy is gone")


@pytest.fixture(scope="module", params=POOLS)
def on_rabbitmq(make_bench, request) -> Iterator[Bench]:
    """RabbitMQ, and one worker that reaches it through a proxy."""
    bench = make_bench("classic", fence_ttl=TTL)
    add_tasks(bench.app)
    bench.pool = request.param
    with through_a_proxy(bench.broker.url) as (proxy, url):
        bench.proxy = proxy
        launch(bench, conf={"broker_url": url}).await_ready()
        yield bench
        bench.stop_workers()


@contextmanager
def through_a_proxy(url: str) -> Iterator[tuple[Proxy, str]]:
    connection = Connection(url)
    host, port = connection.hostname, connection.port or 5672
    with Proxy(host, port) as proxy:
        yield proxy, url.replace(f"{host}:{port}", f"{proxy.host}:{proxy.port}")


def test_a_lost_connection_to_rabbitmq_brings_a_copy_that_waits(on_rabbitmq):
    bench, key, gate = on_rabbitmq, on_rabbitmq.key(), on_rabbitmq.gate()
    result = bench.send("watched", key, {"watch": gate.path.name, "value": "done"})
    wait_until(lambda: bench.ledger.facts("look", key=key), what="the body looks")
    launch(bench).await_ready()
    bench.proxy.reset()
    wait_until(lambda: received(bench, result) >= 3, what="the copy came, and came back")
    assert starts(bench, result) == 1
    assert bench.holder(key) is not None
    gate.open()

    assert result.get(timeout=20) == "done"
    assert starts(bench, result) == 1
    assert all(look["ours"] for look in bench.ledger.facts("look", key=key))


@pytest.fixture(params=POOLS)
def two_on_rabbitmq(make_bench, request) -> Iterator[Bench]:
    """RabbitMQ, and two workers; a lease lasts much longer than a busy machine takes to deliver a copy."""
    bench = make_bench("classic", fence_ttl=3.0)
    add_tasks(bench.app)
    bench.pool = request.param
    for worker in (launch(bench), launch(bench)):
        worker.await_ready()
    yield bench
    bench.stop_workers()


def opens_at(bench: Bench, key: str) -> float:
    """When *key* opens at the earliest if nobody renews its lease any more, by the lease server's own clock."""
    seconds, microseconds = bench.lease_client.time()
    return seconds + microseconds / 1e6 + bench.holder(key).ttl_left


def test_the_copy_that_rabbitmq_delivers_at_once_for_a_killed_worker_waits_for_its_lease_to_end(
    two_on_rabbitmq,
):
    bench, key, gate = two_on_rabbitmq, two_on_rabbitmq.key(), two_on_rabbitmq.gate()
    result = bench.send("watched", key, {"watch": gate.path.name, "value": "done"})
    wait_until(lambda: bench.ledger.facts("look", key=key), what="the body looks")
    first = bench.holder(key)
    (doomed,) = [worker for worker in bench.workers if first.facts.host.startswith(f"{worker.name}@")]
    opens = opens_at(bench, key)
    doomed.kill()
    wait_until(lambda: starts(bench, result) > 1, what="the copy runs")
    second = bench.holder(key)
    gate.open()

    assert result.get(timeout=20) == "done"
    assert second.since > opens - 0.001  # the time left is in whole milliseconds
    assert bench.ledger.tokens(key) == [first.token, second.token]
    assert second.token > first.token
    assert received(bench, result) > 2, "the copy came at once, and came back"
    assert all(look["ours"] for look in bench.ledger.facts("look", key=key))
