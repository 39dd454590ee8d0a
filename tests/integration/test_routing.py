"""A message that misses goes back to where it was sent: other queues, topic exchanges, old protocols, other clients."""

from __future__ import annotations

import pytest
from bench.waiting import wait_until
from bench.world import Bench
from celery import Celery

TOPIC = {"bench_bindings": {"": "work.#", ".other": "other.#"}, "task_default_routing_key": "work.all"}
WORLDS = {
    "redis": ("redis", {}),
    "redis with a topic exchange": ("redis", TOPIC),
    "rabbitmq": ("classic", {}),
}


@pytest.fixture(scope="module", params=WORLDS)
def bench(make_bench, request) -> Bench:
    """One worker for the default queue and one for another."""
    kind, conf = WORLDS[request.param]
    bench = make_bench(kind, fence_ttl=30.0, **conf)
    bench.other = f"{bench.queue}.other"
    first = bench.launch(concurrency=1, options=["-Q", bench.queue])
    second = bench.launch(concurrency=1, options=["-Q", bench.other])
    first.await_ready()
    second.await_ready()
    return bench


@pytest.mark.parametrize("policy", ["retry", "requeue"])
@pytest.mark.parametrize("queue", ["queue", "other"])
def test_a_message_comes_back_to_its_own_queue(bench, policy, queue):
    key = bench.key()
    bench.occupy(key)
    routing = {"routing_key": "other.key"} if queue == "other" and "bench_bindings" in bench.conf else {}
    result = bench.send(policy, key, {"value": "done"}, queue=getattr(bench, queue), **routing)
    wait_until(lambda: bench.misses(key) >= 2)
    bench.vacate(key)
    worker = bench.workers[0 if queue == "queue" else 1]

    assert result.get(timeout=30) == "done"
    assert bench.ledger.starts(key)[0]["pid"] in worker.child_pids()


def test_a_message_of_a_client_that_does_not_know_celery_fence_waits_too(bench):
    client = Celery(
        "client", set_as_current=False, broker=bench.broker.url, backend=bench.conf["result_backend"]
    )
    key = bench.key()
    bench.occupy(key)
    result = client.send_task("retry", (key, {"value": "done"}), queue=bench.app.amqp.queues[bench.queue])
    wait_until(lambda: bench.misses(key) >= 2)
    bench.vacate(key)
    wait_until(lambda: bench.ledger.ends(key))

    assert bench.app.AsyncResult(result.id).get(timeout=30) == "done"
    assert len(bench.ledger.starts(key)) == 1
    result.forget()
    client.close()
