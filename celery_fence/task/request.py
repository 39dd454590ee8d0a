"""
The worker's main process: what it hands to the execution, and the events it sends.

Each delivery gets a fresh owner here, so that the main process knows it although
the lease is taken in a pool process. It also hands over what a pool process doesn't
see of the message: serializer, compression, delivery mode.
"""

from __future__ import annotations

import uuid
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.worker.request import Request
from kombu.serialization import registry
from kombu.utils.encoding import safe_repr

from celery_fence.errors import DeadLettered
from celery_fence.task.notes import RUN
from celery_fence.task.skip import Skipped


class FencedRequest(Request):
    """Celery's request for a fenced task."""

    _fence_failure_event = "task-failed"

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.request_dict[RUN] = {"owner": uuid.uuid4().hex, **_made_with(message)}

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


def _made_with(message: Any) -> dict[str, Any]:
    """How the sender made the message, for making it again in the same way."""
    properties = message.properties or {}
    return {
        "serializer": registry.type_to_name.get(message.content_type),
        "compression": (message.headers or {}).get("compression"),
        "delivery_mode": properties.get("delivery_mode"),
    }
