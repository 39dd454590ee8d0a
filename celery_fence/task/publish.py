"""
Publishing a message again, confirmed by the broker and to a declared queue.

A message is acknowledged only after what follows from it is safe. So everything
that celery-fence publishes waits for the broker's confirmation.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject
from kombu.pools import ProducerPool

from celery_fence.errors import ConfigError
from celery_fence.task.notes import HEADER, RUN, Notes, Route, same_delivery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu import Producer, Queue

PATIENCE = {"max_retries": 12, "interval_start": 0.1, "interval_step": 0.5, "interval_max": 5.0}
"""How often and how patiently (seconds) a publish is tried again: about half a minute in all."""

X_DEATH = re.compile(r"^x-(first-|last-)?death", re.IGNORECASE)
"""Headers of RabbitMQ by which it takes a message that is sent again for a loop, and drops it."""

_DELAY_LEVELS = re.compile(r"^(?:[01]\.){28}")
"""What Celery's native delayed delivery puts before the routing key on RabbitMQ quorum queues."""


class Publisher:
    """Confirmed producers of one app, in this process; *driver* is the broker's kind (``redis``, ``amqp``, ...)."""

    def __init__(self, app: Any) -> None:
        self.made_for = (os.getpid(), app.conf.broker_write_url)
        connection = app.connection_for_write(transport_options={"confirm_publish": True})
        self.driver: str = connection.transport.driver_type
        limit = app.conf.broker_pool_limit or 10
        self._pool = ProducerPool(connection.Pool(limit=limit), limit=limit)

    @classmethod
    def of(cls, app: Any) -> Publisher:
        """The publisher of *app*; a new one after a fork or a change of the broker."""
        known: Publisher | None = app.__dict__.get("_fence_publisher")
        if known is None or known.made_for != (os.getpid(), app.conf.broker_write_url):
            known = app.__dict__["_fence_publisher"] = cls(app)
        return known

    @contextmanager
    def producer(self) -> Iterator[Producer]:
        """A producer whose `publish` returns once the broker has the message."""
        with self._pool.acquire(block=True) as producer:
            yield producer


def send_again(task: Any, notes: Notes, *, delay: float = 0.0, **changes: Any) -> Any:
    """
    Publish the message that *task* is working on once more, as the same delivery.

    Everything is kept: id, arguments, chain, chord, group, links, expiry, limits,
    priority, stamps, serializer; *notes* become its ``fence`` header. *changes* are
    options of `apply_async` that differ. Returns the signature that was sent.

    Raises:
        celery.exceptions.Reject: the broker didn't take it and the message isn't
            acknowledged yet: it goes back.
        kombu.exceptions.OperationalError: the broker didn't take it, and the message
            was acknowledged early.

    """
    request = task.request
    options = {**_kept(request), **_target(task.app, notes.route or route_of(task.app, request)), **changes}
    headers = {**_own_headers(request), **changes.pop("headers", {}), HEADER: notes.header()}
    signature = task.signature_from_request(
        request,
        countdown=_countdown(task.app, delay),
        retries=request.retries,
        **{**options, "headers": headers},
    )
    try:
        with same_delivery(), Publisher.of(task.app).producer() as producer:
            signature.apply_async(producer=producer, retry=True, retry_policy=PATIENCE, add_to_parent=False)
    except Exception as error:
        if task.acks_late:
            raise Reject(error, requeue=True) from error
        raise
    return signature


def refuse_broadcast(app: Any, task: str, request: Any) -> None:
    """
    Refuse a message that a fanout exchange gave to many queues: to run it once is not what was asked for.

    Sent again, each copy would be multiplied by the number of queues. Raises `ConfigError`.
    """
    exchange = (request.delivery_info or {}).get("exchange")
    if not exchange or exchange not in _fanouts(app):
        return
    raise ConfigError(
        f"Task {task!r} is fenced and was sent to the fanout exchange {exchange!r}, which gives each of its queues a "
        "copy: only one would run. Send it to an ordinary queue, or broadcast a task that isn't fenced."
    )


def _fanouts(app: Any) -> set[str]:
    return {queue.exchange.name for queue in app.amqp.queues.values() if queue.exchange.type == "fanout"}


def route_of(app: Any, request: Any) -> Route:
    """Where the message was sent, from what the broker says of its delivery."""
    info = request.delivery_info or {}
    exchange, routing_key = info.get("exchange") or "", info.get("routing_key") or ""
    undelayed = _DELAY_LEVELS.sub("", routing_key)
    if undelayed != routing_key:
        exchange, routing_key = "", undelayed
        queue = _queue_bound(app, None, undelayed)
    else:
        queue = _queue_bound(app, exchange, routing_key)
    return Route(exchange=exchange, routing_key=routing_key, queue=queue.name if queue is not None else "")


def _queue_bound(app: Any, exchange: str | None, routing_key: str) -> Queue | None:
    """The app's queue that such a message comes from; consumed ones first. *exchange* None: whichever."""
    queues = app.amqp.queues
    if exchange == "" and routing_key:
        return queues[routing_key]
    candidates = [*queues.consume_from.values(), *queues.values()]
    for queue in candidates:
        if exchange in (None, queue.exchange.name) and _matches(queue, routing_key):
            return queue
    return None


def _matches(queue: Queue, routing_key: str) -> bool:
    if queue.exchange.type != "topic":
        return bool(queue.routing_key == routing_key) or queue.exchange.type == "fanout"
    pattern = re.escape(queue.routing_key).replace(r"\*", r"[^.]+").replace(r"\#", ".*").replace("#", ".*")
    return re.fullmatch(pattern, routing_key) is not None


def _target(app: Any, route: Route) -> dict[str, Any]:
    """
    The options that send a message to where it came from.

    The queue is named where it is known: on Redis a bare exchange and routing key
    of a topic exchange reach nobody in a process that hasn't declared it.
    """
    if route.queue:
        queue = app.amqp.queues[route.queue]
        keyed = {"routing_key": route.routing_key} if route.routing_key and queue.exchange.name else {}
        return {"queue": queue, **keyed}
    return {"exchange": route.exchange, "routing_key": route.routing_key}


def _kept(request: Any) -> dict[str, Any]:
    """Options of the original call that Celery's own retry forgets."""
    handed = request.get(RUN)
    made = handed if isinstance(handed, dict) else getattr(handed, "handed", {})
    texts = {name: request.get(name) for name in ("argsrepr", "kwargsrepr")}
    known = {**texts, **{name: made.get(name) for name in ("serializer", "compression", "delivery_mode")}}
    return {name: value for name, value in known.items() if value is not None}


def _own_headers(request: Any) -> dict[str, Any]:
    """The message's own headers, without those that make RabbitMQ see a loop and without ours."""
    headers = request.headers or {}
    return {
        name: value
        for name, value in headers.items()
        if name not in (HEADER, RUN) and not X_DEATH.match(name)
    }


def _countdown(app: Any, delay: float) -> float | None:
    """
    *delay* as the broker can keep it.

    RabbitMQ's delayed delivery for quorum queues knows whole seconds and refuses 0.
    """
    if delay <= 0:
        return None
    return max(math.ceil(delay), 1) if Publisher.of(app).driver == "amqp" else delay
