"""
What lies in a dead-letter queue, looked at without taking it away.

A broker shows a message only by delivering it. So each is taken without an
acknowledgement, and what isn't done with goes back in the order in which it came;
should this process die in between, the broker puts it back itself (RabbitMQ at
once, Redis after the visibility timeout).
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from celery_fence.errors import ConfigError
from celery_fence.task.publish import PATIENCE, Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kombu import Connection, Queue

DEAD = "fence_dead"
"""The header that says why a message was given up."""

LOOKS = 3
"""RabbitMQ drops a message of a quorum queue that came back too often (20 times in its version 4)."""

NOT_FOUND = "404"

PATIENCE_WITH_REDIS = {"socket_timeout": 3.0, "socket_connect_timeout": 3.0}
"""In seconds; without them kombu waits for a frozen server for ever."""

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
            id=_text(headers.get("id") or dead.get("task_id")),
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
    app: Any,
    source: Queue,
    done_with: Callable[[Any, Letter], bool],
    *,
    most: int | None = None,
    must_exist: bool = False,
) -> list[Letter]:
    """
    Show each message that lies in *source* to *done_with*, the oldest first, at most *most*.

    What it answers True for is acknowledged and returned. The others go back in
    order, also when something fails on the way. Ends at a letter that came back
    meanwhile. A queue that doesn't exist is empty, and isn't made; where it
    *must_exist* that is an error, except on Redis, where an empty queue is none.

    Raises:
        ConfigError: the queue must exist, and doesn't.
        kombu.exceptions.OperationalError: the broker can't be reached.

    """
    if must_exist:
        _check_existence(app, source)
    with _connection(app) as connection, connection.channel() as channel, _giving_back(app, source) as kept:
        messages = _messages(connection, source.bind(channel), app.conf.accept_content, most)
        return list(_finished(messages, done_with, kept))


def _finished(
    messages: Iterator[Any], done_with: Callable[[Any, Letter], bool], kept: list[Any]
) -> Iterator[Letter]:
    """Those that are done with, acknowledged; *kept* are the others."""
    finished: set[str] = set()
    for message in messages:
        kept.append(message)
        letter = Letter.of(message)
        if letter.id in finished:
            return
        if done_with(message, letter):
            message.ack()
            kept.pop()
            finished.add(letter.id)
            yield letter


def _messages(connection: Connection, bound: Queue, accept: Any, most: int | None) -> Iterator[Any]:
    """The messages of the queue, unacknowledged, until it is empty: its length would be out of date on RabbitMQ."""
    for _ in itertools.count() if most is None else range(most):
        try:
            message = bound.get(no_ack=False, accept=accept)
        except connection.channel_errors as error:
            if str(getattr(error, "reply_code", "")) != NOT_FOUND:
                raise
            return  # there is no such queue
        if message is None:
            return
        yield message


def _check_existence(app: Any, source: Queue) -> None:
    """Ask the broker for the queue, without making it."""
    if Publisher.of(app).driver == "redis":
        return
    with _connection(app) as connection:
        try:
            source.bind(connection.default_channel).queue_declare(passive=True)
        except connection.channel_errors as error:
            if str(getattr(error, "reply_code", "")) != NOT_FOUND:
                raise
            raise ConfigError(
                f"There is no queue {source.name!r} on the broker. Dead letters lie in the queue that the setting "
                "fence_dead_letter_queue names, or a DeadLetter(queue=...) among the policies."
            ) from error


@contextmanager
def _connection(app: Any) -> Iterator[Connection]:
    """A connection to the broker that gives up after a few seconds, where kombu's own would try for ever."""
    options = PATIENCE_WITH_REDIS if Publisher.of(app).driver == "redis" else {}
    with app.connection_for_read(transport_options=options) as connection:
        try:
            connection.ensure_connection(max_retries=2, interval_start=0.2)
            yield connection
        except (*connection.connection_errors, *connection.channel_errors) as error:
            raise OperationalError(str(error)) from error


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
