"""
The three brokers of the suite: an own Redis, RabbitMQ with classic and with quorum queues.

RabbitMQ is the local one. Every bench has queue names of its own, and where
`rabbitmqctl` may be used the whole session has a virtual host of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from kombu import Connection

AMQP = os.environ.get("FENCE_TEST_AMQP_URL", "amqp://guest:guest@127.0.0.1:5672")
KINDS = ("redis", "classic", "quorum")


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the messages of one bench travel, with the settings Celery needs for it."""

    kind: str
    url: str
    conf: dict[str, Any] = field(default_factory=dict)


def rabbit_broker(kind: str, url: str, queue: str) -> Broker:
    """RabbitMQ with a classic or quorum queue, and control exchanges that nobody else uses."""
    conf = {"control_exchange": f"{queue}.control", "event_exchange": f"{queue}.events"}
    if kind == "quorum":
        conf |= {
            "task_default_queue_type": "quorum",
            "task_default_exchange": f"{queue}.topic",
            "task_default_exchange_type": "topic",
            "broker_transport_options": {"confirm_publish": True},
        }
    return Broker(kind, url, conf)


@contextmanager
def rabbit_url() -> Iterator[str]:
    """The URL of a virtual host of our own, deleted afterwards; the default one where that can't be had."""
    host, _, port = AMQP.rpartition("@")[2].partition(":")
    with suppress(OSError), socket.create_connection((host, int(port or 5672)), timeout=2):
        vhost = f"fence-{uuid.uuid4().hex[:8]}"
        made = _ctl("add_vhost", vhost) and _ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        try:
            yield f"{AMQP}/{vhost if made else '/'}"
        finally:
            _ctl("delete_vhost", vhost)
        return
    # The suite's conftest turns every skip into a failure under CI.
    pytest.skip(f"no RabbitMQ at {host}:{port}")


def delete_queues(url: str, *queues: str) -> None:
    """Remove what a bench left on a broker that outlives it."""
    with Connection(url) as connection:
        for queue in queues:
            # A queue that is gone already closes the channel; the next one gets a new channel.
            with suppress(connection.channel_errors), connection.channel() as channel:
                channel.queue_delete(queue)


def _ctl(*words: str) -> bool:
    program = shutil.which("rabbitmqctl")
    if program is None:
        return False
    try:
        return (
            subprocess.run([program, "-q", *words], capture_output=True, check=False, timeout=60).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False
