"""What the Redis broker still has of a message: kombu's layout, read as an onlooker."""

from __future__ import annotations

import json
from typing import Any

from bench.world import Bench


def is_left(bench: Bench, task_id: str, queue: str | None = None) -> bool:
    """Whether the broker still has the message: in its queue, or delivered and not acknowledged."""
    return task_id in waiting(bench, queue) or task_id in unacknowledged(bench)


def waiting(bench: Bench, queue: str | None = None) -> list[str]:
    """The task ids in a queue."""
    return [_id(json.loads(raw)) for raw in bench.broker_client.lrange(queue or bench.queue, 0, -1)]


def unacknowledged(bench: Bench) -> list[str]:
    """The task ids that were delivered and not acknowledged, on all queues."""
    return [_id(json.loads(raw)[0]) for raw in bench.broker_client.hvals("unacked")]


def _id(message: dict[str, Any]) -> str:
    return message["headers"]["id"]
