"""Sending the plan's messages, as fast as they are worked off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.utils import uuid
from kombu import Connection, Producer

from rig.load import Message, messages
from rig.world import World

MOST_WAITING = 80
"""Messages that are sent and haven't ended; beyond that a backlog would outlive the visibility timeout by itself."""

BURST = 12
"""Messages sent in one turn, so that faults strike in time."""


class Sender:
    """
    Publishes the messages of a plan; each to a worker group of the plan in turn.

    What is sent and in which order is the plan's; when, depends on how fast it is worked off.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: dict[str, Message] = {}
        self._stream: Iterator[Message] = messages(world.plan)
        self._offices = _offices(world)
        self._number = 0

    def turn(self, waiting: int) -> list[str]:
        """Send some, if fewer than `MOST_WAITING` are *waiting*; returns their task ids."""
        return [self._send() for _ in range(min(BURST, MOST_WAITING - waiting))]

    def close(self) -> None:
        """Close the connections to the brokers."""
        for _, producer in self._offices:
            producer.connection.release()

    def _send(self) -> str:
        message, task_id = next(self._stream), uuid()
        self._number += 1
        # Every third one to the worker with the wrong clock, where there is one.
        app, producer = self._offices[-1 if self._number % 3 == 0 else 0]
        self.sent[task_id] = message
        self.world.history.note(
            "published",
            task_id=task_id,
            name=message.name,
            key=message.key,
            policy=message.name,
            copies=message.copies,
            broker=app.conf.broker_url,
        )
        producer.copies = message.copies
        app.tasks[message.name].apply_async(
            (message.key, message.plan), task_id=task_id, producer=producer, retry=True
        )
        return task_id


class Copying(Producer):
    """A producer that publishes the very same message, with the same delivery id, *copies* times."""

    copies = 1

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        """As kombu's, several times."""
        for _ in range(self.copies - 1):
            super().publish(*args, **kwargs)
        return super().publish(*args, **kwargs)


def _offices(world: World) -> list[tuple[Any, Copying]]:
    apps = {post.app.conf.broker_url: post.app for post in world.posts}
    return [(app, Copying(Connection(url).channel())) for url, app in apps.items()]
