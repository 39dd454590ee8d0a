"""
What lies in a dead-letter queue, looked at without taking it away.

A broker shows a message only by delivering it. So each is taken without an
acknowledgement, and what isn't done with goes back in the order in which it came;
should this process die in between, the broker puts it back itself (RabbitMQ at
once, Redis after the visibility timeout).
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_fence.task.publish import PATIENCE, Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kombu import Queue

logger = logging.getLogger(__name__)

DEAD = "fence_dead"
"""The header that says why a message was given up."""

LOOKS = 3
"""RabbitMQ drops a message of a quorum queue that came back too often (20 times in its version 4)."""

COUNTS_OF_RABBITMQ = ("x-delivery-count", "x-acquired-count")


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, without its body. Moments are in seconds since the epoch, 0.0 where unknown."""

    id: str
    task: str
    key: str = ""
    reason: str = ""
    attempts: int = 0
    first_miss: float = 0.0
    last_miss: float = 0.0
    queue: str = ""
    args: str = field(default="", repr=False)
    kwargs: str = field(default="", repr=False)
    holder: str = ""
    holder_task: str = ""
    holder_task_id: str = ""
    expires: str = ""

    @classmethod
    def of(cls, message: Any) -> Letter:
        """What the headers of *message* say; messages of others have none of ours, and are letters all the same."""
        headers = message.headers
        dead = headers.get(DEAD)
        dead = dead if isinstance(dead, dict) else {}
        route = dead.get("route")
        route = route if isinstance(route, dict) else {}
        return cls(
            id=_text(headers.get("id")),
            task=_text(headers.get("task") or dead.get("task")),
            key=_text(dead.get("key")),
            reason=_text(dead.get("reason")),
            attempts=int(_number(dead.get("attempts"))),
            first_miss=_number(dead.get("first_miss")),
            last_miss=_number(dead.get("last_miss")),
            queue=_text(route.get("queue") or route.get("routing_key")),
            args=_text(headers.get("argsrepr")),
            kwargs=_text(headers.get("kwargsrepr")),
            holder=_text(dead.get("holder")),
            holder_task=_text(dead.get("holder_task")),
            holder_task_id=_text(dead.get("holder_task_id")),
            expires=_text(dead.get("expires")),
        )


def go_through(
    app: Any, source: Queue, done_with: Callable[[Any, Letter], bool], *, most: int | None = None
) -> list[Letter]:
    """
    Show each message that lies in *source* now to *done_with*, the oldest first, at most *most*.

    What it answers True for is acknowledged and returned. The others go back in
    order, also when something fails on the way. Messages that arrive meanwhile
    aren't looked at. A queue that doesn't exist is empty, and isn't made.

    Raises:
        kombu.exceptions.OperationalError: the broker can't be reached.

    """
    done: list[Letter] = []
    with _channel(app) as channel:
        bound = source.bind(channel)
        waiting = _waiting(bound)
        with _giving_back(app, source) as kept:
            for _ in range(waiting if most is None else min(most, waiting)):
                message = bound.get(no_ack=False, accept=app.conf.accept_content)
                if message is None:
                    break
                kept.append(message)
                letter = Letter.of(message)
                if done_with(message, letter):
                    message.ack()
                    kept.pop()
                    done.append(letter)
    return done


@contextmanager
def _channel(app: Any) -> Iterator[Any]:
    """A channel to the broker; gives up after a few seconds where kombu would try for ever."""
    options = {"socket_timeout": 10.0} if Publisher.of(app).driver == "redis" else {}
    with app.connection_for_read(transport_options=options) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0.2)
        with connection.channel() as channel:
            yield channel


def _waiting(bound: Any) -> int:
    """How many messages lie in the queue; 0 where there is no such queue."""
    client = bound.channel.connection.client
    try:
        with client.channel() as channel:  # RabbitMQ closes the channel that asks for a missing queue
            return int(bound.bind(channel).queue_declare(passive=True).message_count)
    except client.channel_errors as error:
        if getattr(error, "reply_code", None) not in (404, "404"):
            raise
        logger.debug("There is no queue %r: %s", bound.name, error)
        return 0


@contextmanager
def _giving_back(app: Any, source: Queue) -> Iterator[list[Any]]:
    """A list of messages that go back to the queue at the end, in order."""
    kept: list[Any] = []
    try:
        yield kept
    finally:
        for message in kept:
            if _number(message.headers.get("x-delivery-count")) >= LOOKS:
                _publish_anew(app, source, message)
                message.ack()
            else:
                message.requeue()


def _publish_anew(app: Any, source: Queue, message: Any) -> None:
    """A fresh copy at the end of the queue, confirmed: RabbitMQ would drop this one for being looked at too often."""
    headers = {name: value for name, value in message.headers.items() if name not in COUNTS_OF_RABBITMQ}
    kept = ("correlation_id", "reply_to", "priority", "delivery_mode")
    with Publisher.of(app).producer() as producer:
        producer.publish(
            message.body,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            exchange="",
            routing_key=source.name,
            headers=headers,
            retry=True,
            retry_policy=PATIENCE,
            **{name: value for name, value in message.properties.items() if name in kept},
        )


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def by_id(ids: Mapping[str, Any] | frozenset[str]) -> Callable[[Letter], bool]:
    """Whether a letter is one of *ids*."""
    return lambda letter: letter.id in ids
