"""
Giving a message up without losing it.

A dead letter is the message itself, in a queue that no worker consumes, with a
header ``fence_dead`` that says why. `replay` sends it back to where it came from.
`celery_fence.task.letters` looks into the queue.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery_fence.errors import DeadLettered
from celery_fence.locking import events
from celery_fence.task import given as rules
from celery_fence.task.given import Given
from celery_fence.task.install import runtime
from celery_fence.task.letters import COUNTS_OF_RABBITMQ, DEAD, Letter, go_through
from celery_fence.task.notes import HEADER, RUN, Notes, Route, same_delivery, stamp_delivery, wall_clock
from celery_fence.task.publish import PATIENCE, X_DEATH, Publisher, route_of, send_again
from celery_fence.task.settings import FenceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kombu import Queue

    from celery_fence.locking.policies import GiveUp
    from celery_fence.locking.store import Holder
    from celery_fence.task.notes import Count
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)


def dead_letter(run: Run, decision: GiveUp, count: Count, holder: Holder | None) -> DeadLettered:
    """Publish the message to the dead-letter queue, confirmed; returns the error that its result shows."""
    task, reason = run.task, decision.reason
    name = decision.queue or run.options.settings.dead_letter_queue
    if task.request.is_eager:
        return DeadLettered(
            f"Gave up on {run.subject!r} ({reason}). In a worker the message would lie in the queue {name!r} "
            "now; an eager call has no message.",
            key=run.subject,
            reason=reason,
        )
    _publish(run, name, reason, count, holder)
    tries, waited = count.total + 1, count.waited(wall_clock())
    runtime(task.app).emit(
        events.DeadLetteredMessage(task, run.subject, holder, run.task_id, name, reason, tries, waited)
    )
    return _dead_lettered(run, name, reason, count, holder)


def _publish(run: Run, name: str, reason: str, count: Count, holder: Holder | None) -> None:
    """Publish the message of *run* to the queue *name*, with what there is to know of it."""
    route = run.notes.route or route_of(run.task.app, run.task.request)
    queue = dead_letter_queue(run.task.app, name)
    send_again(
        run.task,
        Notes(delivery=uuid.uuid4().hex, route=route),  # a new one: it runs wherever it is moved by hand
        headers={DEAD: _facts(run, reason, count, holder, route)},
        queue=queue,
        routing_key=queue.routing_key,
        expires=None,
    )


def _dead_lettered(run: Run, name: str, reason: str, count: Count, holder: Holder | None) -> DeadLettered:
    then = "key is free" if holder is not None else "lease store can be reached"
    elsewhere = "" if name == run.options.settings.dead_letter_queue else f" --queue {name}"
    return DeadLettered(
        f"Gave up on {run.subject!r} ({reason}) after {_tries(count)}; the message lies in the queue "
        f"{name!r}. Once the {then}, send it back: "
        f"celery -A <app> fence dead-letters replay --id {run.task_id}{elsewhere}",
        key=run.subject,
        reason=reason,
        queue=name,
    )


def _tries(count: Count) -> str:
    return f"{count.total + 1} {'tries' if count.total else 'try'}"


def dead_letter_queue(app: Any, name: str) -> Queue:
    """The queue *name* as the app declares it, or a plain durable one; it isn't added to what workers consume."""
    queues = app.amqp.queues
    return queues[name] if name in queues else queues.new_missing(name)


def letters(app: Any, *, queue: str | None = None) -> list[Letter]:
    """
    The dead letters that lie in *queue*, the oldest first; they stay there, in their order.

    Raises:
        ConfigError: there is no queue of the name *queue*.
        kombu.exceptions.OperationalError: the broker can't be reached.

    """
    found: list[Letter] = []

    def look(_message: Any, letter: Letter) -> bool:
        found.append(letter)
        return False

    _go_through(app, queue, look)
    return found


def replay(
    app: Any, *, queue: str | None = None, limit: int | None = None, ids: Collection[str] | None = None
) -> int:
    """
    Send dead letters back to the queues they came from; returns how many.

    The oldest *limit* of them, or those of the task ids *ids*, or all. Each keeps
    its id, arguments and headers, starts with a fresh wait, and is a new delivery.
    A member of a chord leaves it: the chord was told of the failure. A letter is
    taken off the queue only once the broker has confirmed its replay, so a crash in
    between replays it twice and never loses it.

    Raises:
        ConfigError: there is no queue of the name *queue*.
        kombu.exceptions.OperationalError: the broker can't be reached.

    """
    return len(replay_letters(app, queue=queue, limit=limit, ids=ids))


def replay_letters(
    app: Any, *, queue: str | None = None, limit: int | None = None, ids: Collection[str] | None = None
) -> list[Letter]:
    """As `replay`; returns the letters that were sent."""

    def send(message: Any, letter: Letter) -> bool:
        if ids is not None and letter.id not in ids:
            return False
        if not letter.queue:
            logger.warning("The dead letter %s stays: it doesn't say which queue it came from.", letter.id)
            return False
        _send_back(app, message)
        return True

    return _go_through(app, queue, send, ids=ids, limit=limit)


def purge_letters(
    app: Any, *, queue: str | None = None, limit: int | None = None, ids: Collection[str] | None = None
) -> list[Letter]:
    """
    Delete dead letters for good, chosen as by `replay`; returns them.

    Raises:
        ConfigError: there is no queue of the name *queue*.
        kombu.exceptions.OperationalError: the broker can't be reached.

    """
    return _go_through(app, queue, lambda _, letter: ids is None or letter.id in ids, ids=ids, limit=limit)


def _go_through(
    app: Any,
    queue: str | None,
    done_with: Callable[[Any, Letter], bool],
    *,
    ids: Collection[str] | None = None,
    limit: int | None = None,
) -> list[Letter]:
    """`go_through`, for a *queue* that must exist if it isn't the usual one: a misspelt name isn't just empty."""
    if isinstance(ids, str):
        raise Given("ids", ids).wrong("a collection of task ids", f" Write [{ids!r}].")
    usual = FenceSettings.of(app).dead_letter_queue
    name = usual if queue is None else rules.text(Given("queue", queue), must="the name of a queue")
    most = None if limit is None else rules.count(Given("limit", limit))
    return go_through(app, dead_letter_queue(app, name), done_with, most=most, must_exist=name != usual)


def _send_back(app: Any, letter: Any) -> None:
    headers = {
        name: value
        for name, value in letter.headers.items()
        if not X_DEATH.match(name) and name not in COUNTS_OF_RABBITMQ
    }
    dead = headers.pop(DEAD, None) or {}
    headers.pop(RUN, None)
    route = Route(**(dead.get("route") or {}))
    if "expires" in headers:  # protocol 1 has it in its body, and a letter's has none
        headers["expires"] = _still_ahead(dead.get("expires"))
    headers[HEADER] = {}
    stamp_delivery(headers=headers)
    queue = app.amqp.queues[route.queue] if route.queue else None
    exchange = queue.exchange.name if queue is not None else route.exchange
    with same_delivery(), Publisher.of(app).producer() as producer:
        producer.publish(
            **_body(letter),
            exchange=exchange if route.routing_key else "",
            routing_key=route.routing_key or route.queue,
            declare=[queue] if queue is not None else [],
            headers=headers,
            retry=True,
            retry_policy=PATIENCE,
            **{k: v for k, v in letter.properties.items() if k in ("correlation_id", "reply_to", "priority")},
        )


def _body(letter: Any) -> dict[str, Any]:
    """The letter's bytes as they are, or, for a member of a chord, encoded again without the chord."""
    payload = letter.payload
    by_protocol_1 = isinstance(payload, dict)
    if not (payload if by_protocol_1 else payload[2]).get("chord"):
        return {
            "body": letter.body,
            "content_type": letter.content_type,
            "content_encoding": letter.content_encoding,
        }
    from kombu.serialization import registry

    serializer = registry.type_to_name[letter.content_type]
    if by_protocol_1:
        return {"body": {**payload, "chord": None}, "serializer": serializer}
    args, kwargs, embed = payload
    return {"body": (args, kwargs, {**embed, "chord": None}), "serializer": serializer}


def _still_ahead(expires: str | None) -> str | None:
    """An expiry that hasn't passed yet; one that has would only discard what the operator wants to run."""
    if not expires:
        return None
    moment = datetime.fromisoformat(expires)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return expires if aware > datetime.now(tz=UTC) else None


def _facts(run: Run, reason: str, count: Count, holder: Holder | None, route: Route) -> dict[str, Any]:
    """Why the message was given up, as plain JSON types."""
    now = wall_clock()
    expires = run.task.request.expires
    return {
        "reason": reason,
        "key": run.subject,
        "task": run.task.name,
        "task_id": run.task_id,
        "attempts": count.total + 1,
        "first_miss": count.first or now,
        "last_miss": now,
        "holder": "" if holder is None else holder.owner,
        "holder_task": "" if holder is None else holder.facts.task_name,
        "holder_task_id": "" if holder is None else holder.facts.task_id,
        "route": asdict(route),
        "expires": expires if isinstance(expires, str) or expires is None else expires.isoformat(),
    }
