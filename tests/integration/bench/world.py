"""One small world for one test module: a broker, servers, a queue, workers, a ledger."""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import redis
from celery import Celery
from celery.result import AsyncResult

from bench.app import WORLD, build_app
from bench.brokers import Broker, delete_queues, rabbit_broker
from bench.ledger import Gate, Ledger
from bench.waiting import wait_until
from bench.worker import Worker
from celery_fence.locking.store import Claim, Facts
from celery_fence.testing.servers import EmbeddedServer, embedded_server

DEFAULTS = {
    "broker_connection_retry_on_startup": True,
    "result_extended": True,
    "task_acks_late": True,
    "task_publish_retry_policy": {
        "max_retries": 3,
        "interval_start": 0,
        "interval_step": 0.2,
        "interval_max": 0.5,
    },
    "worker_prefetch_multiplier": 1,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
}


class Bench:
    """
    Everything a test needs; use it as a context manager.

    The lease server is nobody else's, so its commands can be counted and it can be stopped;
    *redis* is both broker (kind ``redis``) and result backend.
    """

    def __init__(self, directory: Path, kind: str = "redis", rabbit: str | None = None, **conf: Any) -> None:
        self.directory = directory
        self.kind = kind
        self.queue = f"bench-{uuid.uuid4().hex[:10]}"
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.workers: list[Worker] = []
        self._rabbit = rabbit
        self._extra = conf
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.redis: EmbeddedServer = stack.enter_context(embedded_server())
            self.leases: EmbeddedServer = stack.enter_context(embedded_server())
            (self.directory / "gates").mkdir()
            stack.callback(self._delete_queues)
            stack.callback(self.stop_workers)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    @cached_property
    def broker(self) -> Broker:
        """Where the messages travel."""
        if self._rabbit is None:
            return Broker("redis", self.redis.url_of(0))
        return rabbit_broker(self.kind, self._rabbit, self.queue)

    @cached_property
    def conf(self) -> dict[str, Any]:
        """The whole configuration, as the workers get it."""
        return {
            **DEFAULTS,
            "broker_url": self.broker.url,
            "result_backend": self.redis.url_of(1),
            "task_default_queue": self.queue,
            "fence_url": self.leases.url,
            "fence_ttl": 2.0,
            "fence_dead_letter_queue": f"{self.queue}.dead",
            **self.broker.conf,
            "bench_name": self.queue,
            "bench_ledger": str(self.ledger.path),
            "bench_gates": str(self.directory / "gates"),
            "bench_fenced": True,
            **self._extra,
        }

    @cached_property
    def app(self) -> Celery:
        """The app in the test's own process."""
        app = build_app(self.conf)
        self._stack.callback(close_app, app)
        return app

    def worker(self, **how: Any) -> Worker:
        """Start a worker on the queue and wait until it is ready."""
        return self.launch(**how).await_ready()

    def launch(self, *, conf: dict[str, Any] | None = None, **how: Any) -> Worker:
        """Start a worker process without waiting; *conf* is added for this worker only."""
        name = f"{self.queue}-{len(self.workers)}"
        env = {WORLD: json.dumps({**self.conf, **(conf or {})})}
        worker = Worker(name, self.directory / f"{name}.log", env=env, **how)
        self.workers.append(worker)
        return worker.launch()

    def stop_workers(self) -> None:
        """End every worker; all are told before the first is waited for, and none for long."""
        for worker in self.workers:
            if worker.alive:
                worker.kill(15)
        for worker in self.workers:
            worker.stop(grace=1.5)

    def key(self, name: str = "k") -> str:
        """A key that no other test of this bench uses."""
        return f"{name}-{uuid.uuid4().hex[:6]}"

    def gate(self, name: str | None = None) -> Gate:
        """A closed gate; its `path.name` is what a plan names."""
        return Gate(self.directory / "gates" / (name or uuid.uuid4().hex[:8]))

    def send(self, task: str, key: str, plan: dict[str, Any] | None = None, **options: Any) -> AsyncResult:
        """Publish a run of *task* on *key*."""
        return self.app.tasks[task].apply_async((key, plan or {}), **options)

    def hold(self, key: str, task: str = "retry", **plan: Any) -> tuple[AsyncResult, Gate]:
        """Have a worker hold *key* until the returned gate is opened; returns when the body runs."""
        gate = self.gate()
        before = len(self.ledger.starts(key))
        result = self.send(task, key, {"gate": gate.path.name, **plan})
        wait_until(lambda: len(self.ledger.starts(key)) > before, what=f"somebody holds {key}")
        return result, gate

    def outcome(self, result: AsyncResult, timeout: float = 30.0) -> str:
        """The final state of a message, however it ended."""
        wait_until(
            lambda: result.state in ("SUCCESS", "FAILURE", "REVOKED"),
            timeout=timeout,
            what=f"{result.id} ends",
        )
        return result.state

    @cached_property
    def lease_client(self) -> redis.Redis:
        """A client for looking at the lease server."""
        client = redis.Redis.from_url(self.leases.url, decode_responses=True)
        self._stack.callback(client.close)
        return client

    @cached_property
    def broker_client(self) -> redis.Redis:
        """A client for looking at the Redis broker."""
        client = redis.Redis.from_url(self.redis.url_of(0), decode_responses=True)
        self._stack.callback(client.close)
        return client

    @cached_property
    def store(self) -> Any:
        """The lease store, as an onlooker."""
        from celery_fence.stores import from_url

        store = from_url(self.leases.url)
        self._stack.callback(store.close)
        return store

    def holder(self, key: str) -> Any:
        """Who has the bench key *key* now, or None."""
        return self.store.holder(f"job:{key}")

    def occupy(self, key: str, ttl: float = 60.0) -> int:
        """Take *key*, once it is free, from the test's own process for at most *ttl* seconds; returns the token."""
        claim = Claim(f"job:{key}", uuid.uuid4().hex, ttl, Facts(task_name="the test"))
        # A body that has just noted its end is about to release.
        return wait_until(
            lambda: getattr(self.store.acquire(claim), "token", None), what=f"{key} is free to take"
        )

    def vacate(self, key: str) -> None:
        """Free *key*, whoever has it."""
        self.store.force_release(f"job:{key}")

    def misses(self, key: str) -> int:
        """How many misses on *key* the workers have signalled."""
        return len(self.ledger.facts("lease_missed", fence_key=f"job:{key}"))

    def _delete_queues(self) -> None:
        if self._rabbit is not None:
            delete_queues(self._rabbit, self.queue, self.conf["fence_dead_letter_queue"])


def close_app(app: Celery) -> None:
    """Close an app before its servers end, so that results which are collected later ask nobody."""
    consumer = getattr(app.backend, "result_consumer", None)
    if consumer is not None:
        consumer.stop()
        consumer._pubsub = None
    app.close()
