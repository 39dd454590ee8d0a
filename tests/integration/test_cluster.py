"""
A small cluster with pytest-celery: two workers, one of which is killed and started again.

The nodes are processes instead of containers, so neither Docker nor an image is needed.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest
import redis
from bench.app import WORLD, build_app
from bench.deliveries import wait_until_empty
from bench.ledger import Gate, Ledger
from bench.transit import watching_transit
from bench.waiting import wait_until
from bench.worker import Worker
from bench.world import DEFAULTS, close_app
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestContainer,
    CeleryTestWorker,
    CeleryWorkerCluster,
    RedisTestBackend,
    RedisTestBroker,
)

from celery_fence.testing.servers import EmbeddedServer, embedded_server

QUEUE = "cluster"


class ProcessNode(CeleryTestContainer):
    """What pytest-celery asks of a container, answered for a process of this machine."""

    def __init__(self, name: str, pid: Any, conf: dict[str, Any]) -> None:
        # Not calling the base on purpose: it wants a Docker object.
        self._node_name = name
        self._pid = pid
        self._conf = conf

    id = name = property(lambda self: self._node_name)
    celeryconfig = property(lambda self: dict(self._conf))

    def ready(self) -> bool:
        return self._pid() > 0

    def logs(self) -> str:
        return ""

    def reload(self, attrs: Any = None) -> None:
        return None


class WorkerNode(ProcessNode):
    """A worker process as a node."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.name, lambda: worker.pid, {})
        self.worker = worker

    status = property(lambda self: "running" if self.worker.alive else "exited")

    def ready(self) -> bool:
        return bool(self.worker.await_ready())

    def logs(self) -> str:
        return self.worker.log

    def kill(self, signal: str = "SIGKILL") -> None:
        import signal as signals

        self.worker.kill(signals.Signals[signal])

    def restart(self, timeout: int = 10) -> None:
        self.worker.stop(grace=2)
        self.worker.start()

    def teardown(self) -> None:
        self.worker.stop(grace=2)


@pytest.fixture
def server():
    with embedded_server() as server:
        yield server


@pytest.fixture
def broker_client(server):
    client = redis.Redis.from_url(server.url_of(0), decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def leases():
    with embedded_server() as server:
        yield server


def redis_node(server: EmbeddedServer, database: int) -> ProcessNode:
    url = server.url_of(database)
    return ProcessNode(f"redis-{database}", lambda: server.pid, {"url": url, "host_url": url})


@pytest.fixture
def celery_broker_cluster(server):
    return CeleryBrokerCluster(RedisTestBroker(redis_node(server, 0)))


@pytest.fixture
def celery_backend_cluster(server):
    return CeleryBackendCluster(RedisTestBackend(redis_node(server, 1)))


@pytest.fixture
def conf(server, leases, tmp_path) -> dict[str, Any]:
    return {
        **DEFAULTS,
        "broker_url": server.url_of(0),
        "broker_transport_options": {
            "visibility_timeout": 3,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 1,  # a worker that is killed while it restores closes that off for this long
        },
        "result_backend": server.url_of(1),
        "task_default_queue": QUEUE,
        "fence_url": leases.url,
        "fence_ttl": 3.0,
        "bench_name": QUEUE,
        "bench_ledger": str(tmp_path / "ledger.jsonl"),
        "bench_gates": str(tmp_path),
        "bench_fenced": True,
    }


@pytest.fixture
def celery_setup_app(conf):
    app = build_app(conf)
    yield app
    close_app(app)


@pytest.fixture
def celery_worker_cluster(conf, tmp_path, celery_setup_app, celery_broker_cluster, celery_backend_cluster):
    env = {WORLD: json.dumps(conf)}
    workers = [Worker(f"node{n}", tmp_path / f"node{n}.log", env=env, concurrency=2).launch() for n in (1, 2)]
    cluster = CeleryWorkerCluster(
        *[CeleryTestWorker(WorkerNode(worker), app=celery_setup_app) for worker in workers]
    )
    assert cluster.ready()
    yield cluster
    # A cluster doesn't tear its nodes down.
    for node in cluster:
        node.teardown()


@pytest.fixture
def ledger(conf) -> Ledger:
    return Ledger(conf["bench_ledger"])


@pytest.fixture
def gate(tmp_path) -> Gate:
    return Gate(tmp_path / "gate")


def node_that_runs(cluster, pid) -> CeleryTestWorker:
    return next(node for node in cluster if pid in node.container.worker.child_pids())


def test_a_killed_workers_message_runs_again_on_the_other_with_a_higher_token(celery_setup, ledger, gate):
    key = uuid.uuid4().hex
    result = celery_setup.app.tasks["retry"].delay(key, {"gate": "gate", "value": "done"})
    pid = wait_until(lambda: ledger.starts(key))[0]["pid"]
    dead = node_that_runs(celery_setup.worker_cluster, pid)
    dead.kill()
    wait_until(lambda: len(ledger.starts(key)) == 2, timeout=30, what="the message was delivered again")
    gate.open()

    assert result.get(timeout=20) == "done"
    first, second = ledger.tokens(key)
    assert second > first
    assert dead.container.status == "exited"


def test_work_goes_on_when_a_node_is_killed_and_no_key_is_run_twice_at_once(
    celery_setup, ledger, gate, broker_client
):
    keys = [uuid.uuid4().hex for _ in range(5)]
    send = celery_setup.app.tasks["retry"].delay
    with watching_transit(broker_client, QUEUE) as transit:
        held = send(keys[0], {"gate": "gate", "value": "held"})
        pid = wait_until(lambda: ledger.starts(keys[0]), what="a node holds the first key")[0]["pid"]
        doomed = node_that_runs(celery_setup.worker_cluster, pid)
        results = [send(keys[n % 5], {"sleep": 0.05, "value": n}) for n in range(40)]
        wait_until(lambda: len(ledger.facts("end")) >= 5, what="the cluster is at work")
        killed, killed_at = set(doomed.container.worker.child_pids()), time.monotonic()
        doomed.kill()
        gate.open()
        doomed.restart()
        wait_until_empty(broker_client, QUEUE, timeout=90)

    missing = [result.id for result in (held, *results) if result.state != "SUCCESS"]
    assert missing == transit.lost(missing), "what the broker's transport lost, and nothing else"
    assert len(missing) <= 1, "a worker takes one message off the queue at a time"
    assert all(result.get() == n for n, result in enumerate(results) if result.id not in missing)
    for key in keys:
        tokens, overlaps = ledger.tokens(key), ledger.overlaps(key)
        assert tokens == sorted(set(tokens))
        assert all(first["pid"] in killed and second["at"] > killed_at for first, second in overlaps)


def test_a_message_that_left_the_queue_and_was_noted_nowhere_is_known_as_lost(
    celery_setup_app, broker_client
):
    with watching_transit(broker_client, QUEUE) as transit, celery_setup_app.connection_for_read() as broker:
        done, put_back, fresh = [celery_setup_app.tasks["plain"].delay("key").id for _ in range(3)]
        queue = celery_setup_app.amqp.queues[QUEUE].bind(broker.default_channel)
        queue.get().ack()
        queue.get().requeue()
        broker_client.delete(QUEUE)

    assert transit.lost([done, put_back, fresh]) == [put_back, fresh]


def test_a_message_waits_for_a_holder_on_the_other_node(celery_setup, ledger, gate):
    key = uuid.uuid4().hex
    tasks = celery_setup.app.tasks
    first = tasks["retry"].delay(key, {"gate": "gate", "value": 1})
    wait_until(lambda: ledger.starts(key))
    rest = [tasks["retry"].delay(key, {"value": n}) for n in (2, 3, 4)]
    wait_until(lambda: len(ledger.facts("lease_missed", fence_key=f"job:{key}")) >= 3)
    gate.open()

    assert [result.get(timeout=40) for result in (first, *rest)] == [1, 2, 3, 4]
    assert ledger.overlaps(key) == []
