"""
The worker's main process: what it hands to the execution, and the events it sends.

Each delivery gets a fresh owner here, so that the main process knows it although
the lease is taken in a pool process. It also hands over what a pool process doesn't
see of the message: serializer, compression, delivery mode. And it tells `deaths` which
pool process runs what, so that a dead one's leases can be freed.
"""

from __future__ import annotations

import functools
import uuid
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.worker.request import Request
from kombu.serialization import registry
from kombu.utils.encoding import safe_repr

from celery_fence.errors import DeadLettered
from celery_fence.task.burials import deaths_of
from celery_fence.task.deaths import Accepted
from celery_fence.task.install import runtime
from celery_fence.task.notes import RUN
from celery_fence.task.options import TaskOptions
from celery_fence.task.skip import Skipped


class FencedRequest(Request):
    """Celery's request for a fenced task."""

    _fence_failure_event = "task-failed"

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.request_dict[RUN] = {"owner": uuid.uuid4().hex, **_made_with(message)}

    def __init_subclass__(cls, **options: Any) -> None:
        """Hear of each result: Celery derives a faster class for each task, with an `on_success` of its own."""
        super().__init_subclass__(**options)
        if "on_success" in cls.__dict__:
            setattr(cls, "on_success", _noted(cls.__dict__["on_success"]))  # noqa: B010 - mypy knows no such method

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """As Celery's; before it may kill the process, what that one now holds is noted."""
        deaths, options = deaths_of(self._app), TaskOptions.of(self.task)
        if deaths is not None and options.lock_key is not None:
            deaths.accepted(pid, self._accepted(options))
        super().on_accepted(pid, time_accepted)

    def _accepted(self, options: TaskOptions) -> Accepted:
        return Accepted(
            owner=self.request_dict[RUN]["owner"],
            task=self.task.name,
            ttl=options.ttl,
            key=functools.partial(_key_of, options, self._args, self._kwargs),
            store=functools.partial(_store_of, self._app, options.ttl),
        )

    def _success_was_stored(self) -> Any:
        """
        As Celery's; but a chord part whose message goes back to the broker isn't complete.

        Celery acknowledges the message of a dead child once its SUCCESS is stored. A
        child that died before it counted its chord part would hang the chord: here the
        message's copy counts it, without running the body.
        """
        comes_back = self.task.acks_late and self.task.reject_on_worker_lost
        if comes_back and self._context.chord and not getattr(self.task, "retry_on_worker_lost", False):
            return False
        return super()._success_was_stored()

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        """As Celery's, with the events ``task-skipped`` and ``task-dead_lettered`` where they belong."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, DeadLettered):
            self._fence_failure_event = "task-dead_lettered"
        answer = super().on_failure(exc_info, *args, **options)
        if isinstance(error, Skipped):
            self.send_event("task-skipped", result=safe_repr(error.record), exception=error.reason)
        return answer

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's signature
        """Send an event if events are on; a dead letter's failure under its own name."""
        name = self._fence_failure_event if type == "task-failed" else type
        super().send_event(name, **fields)


def _noted(on_success: Any) -> Any:
    """*on_success*, which is told of every result that a pool process has sent; it has ended its run by then."""

    @functools.wraps(on_success)
    def noted(self: FencedRequest, result: Any, **options: Any) -> Any:
        deaths = deaths_of(self._app)
        if deaths is not None:
            deaths.ended(self.worker_pid, self.request_dict[RUN]["owner"])
        return on_success(self, result, **options)

    return noted


def _key_of(options: TaskOptions, args: Any, kwargs: Any) -> str:
    rule = options.lock_key
    if rule is None:
        return ""
    return rule.render(args, {name: value for name, value in kwargs.items() if name != options.inject_as})


def _store_of(app: Any, ttl: float) -> Any:
    return runtime(app).store(ttl)


def _made_with(message: Any) -> dict[str, Any]:
    """How the sender made the message, for making it again in the same way."""
    properties = message.properties or {}
    return {
        "serializer": registry.type_to_name.get(message.content_type),
        "compression": (message.headers or {}).get("compression"),
        "delivery_mode": properties.get("delivery_mode"),
    }
