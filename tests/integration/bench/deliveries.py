"""Messages as another client would publish them, and what the lease store is asked and remembers about deliveries."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from celery import uuid
from celery.result import AsyncResult

from bench.waiting import stays_true, wait_until
from bench.world import Bench
from celery_fence.stores.redis.scripts import Script, load_scripts


def publish_raw(bench: Bench, task: str, key: str, plan: dict[str, Any]) -> AsyncResult:
    """A message made by hand with kombu, which knows nothing of celery-fence: no delivery id."""
    task_id = uuid()
    made = bench.app.amqp.as_task_v2(task_id, task, (key, plan))
    with bench.app.connection_for_write() as connection:
        connection.Producer().publish(
            made.body, exchange="", routing_key=bench.queue, headers=made.headers, **made.properties
        )
    return bench.app.AsyncResult(task_id)


def wait_until_drained(bench: Bench, timeout: float = 40.0) -> None:
    """Wait until the bench's Redis broker has no message any more."""
    wait_until_empty(bench.broker_client, bench.queue, timeout)


def wait_until_empty(client: redis.Redis, queue: str, timeout: float = 40.0) -> None:
    """Wait until no message lies in the Redis broker's *queue* and none is unacknowledged, for a moment on end."""

    def drained() -> bool:
        return not client.llen(queue) and not client.hlen("unacked")

    wait_until(lambda: drained() and stays_true(drained, during=0.3), timeout=timeout, what="drained")


def markers(bench: Bench, key: str) -> list[dict[str, str]]:
    """What the lease store remembers of the ended deliveries of the bench key *key*."""
    client = bench.lease_client
    return [client.hgetall(name) for name in client.scan_iter(f"*:done:*job:{key}*")]


@contextmanager
def questions_asked(bench: Bench) -> Iterator[Counter[str]]:
    """The questions that the lease server is asked during the block, by name; filled when it ends."""
    names = {script.digest: script.name for script in map(_script, load_scripts().__slots__)}
    asked: Counter[str] = Counter()

    def follow() -> None:
        for entry in monitor.listen():
            words = entry["command"].split() or [""]
            if words[0].upper() == "ECHO":
                return
            if words[0].upper() == "EVALSHA":
                asked[names[words[1]]] += 1

    with bench.lease_client.monitor() as monitor:
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        yield asked
        bench.lease_client.echo("counted")
        thread.join(10)


def _script(name: str) -> Script:
    return getattr(load_scripts(), name)
