"""Periodic tasks that note the slot they run for, for `Worker(app="bench.slots")` and for beat."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from bench import bodies
from bench.app import WORLD
from bench.fenced import quick_retry
from celery_fence import FencedTask
from celery_fence.task.slot import slot_in

EVERY = 2.0
"""Seconds between two slots."""


def add_tasks(app: Celery) -> None:
    """Register a task that runs once for each slot, and one that doesn't ask."""
    options = {"base": FencedTask, "bind": True, "lock_key": "job:<key>", "miss_policy": quick_retry()}
    app.task(name="tick", idempotency_key="tick:<key>:<slot>", **options)(tick)
    app.task(name="careless_tick", **options)(tick)
    app.task(name="retrying_tick", idempotency_key="tick:<key>:<slot>", max_retries=1, **options)(
        retrying_tick
    )


def beat_conf(key: str) -> dict[str, Any]:
    """What beat is told: both tasks, every two seconds, on *key* and on *key* with a ``!``."""
    entry = {"schedule": EVERY, "options": {"headers": {"mine": 1}}}
    return {
        "beat_scheduler": "celery_fence.task.beat:SlotScheduler",
        "beat_max_loop_interval": 0.2,
        "beat_schedule": {
            "tick": {"task": "tick", "args": [key], **entry},
            "careless": {"task": "careless_tick", "args": [f"{key}!"], **entry},
        },
    }


def tick(self: Any, key: str) -> str | None:
    """Note the slot, and the header that the schedule's entry gave."""
    slot = slot_in(self.request)
    bodies.ledger_of(self.app).note("tick", key=key, slot=slot, mine=self.request.headers.get("mine"))
    return slot


def retrying_tick(self: Any, key: str) -> list[str | None]:
    """Come back once; answer the slot and the record's key of the second try."""
    if not self.request.retries:
        raise self.retry(countdown=0)
    return [slot_in(self.request), self.record_key]


if WORLD in os.environ:
    from bench.app import app

    add_tasks(app)
