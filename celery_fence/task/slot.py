"""The slot in a message's header: the time that a periodic run was scheduled for (see `celery_fence.task.beat`)."""

from __future__ import annotations

from typing import Any, Final

HEADER: Final = "fence_slot"
"""Such as ``20261129T183000Z``; retries carry it on."""


def slot_in(request: Any) -> str | None:
    """The slot that the message of *request* was stamped with, or None."""
    headers = request.headers if isinstance(request.headers, dict) else {}
    slot = headers.get(HEADER)
    return slot if isinstance(slot, str) and slot else None
