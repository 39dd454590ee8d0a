"""
The boundaries' app with a task that charges: its effect is a row of its own database, once by a unique key.

For `Worker(app="bench.charges")`. The body has two boundaries more: it ``began``, and its
effect is committed (``effected``).
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from sqlalchemy import Engine, create_engine, text

from bench import bodies
from bench.app import WORLD
from bench.boundaries import end_at
from bench.fenced import quick_retry
from celery_fence import FencedTask

CREATE = "CREATE TABLE effects (key VARCHAR(200) PRIMARY KEY, task_id VARCHAR(64) NOT NULL)"
CHARGE = "INSERT INTO effects (key, task_id) VALUES (:key, :task_id) ON CONFLICT (key) DO NOTHING"


def add_charge(app: Celery) -> None:
    """Register the task."""
    app.task(
        base=FencedTask,
        bind=True,
        name="charge",
        lock_key="job:<key>",
        idempotency_key="charge:<key>",
        reject_on_worker_lost=True,
        miss_policy=quick_retry(),
    )(charge)


def charge(self: Any, key: str, plan: bodies.Plan, *, fencing_token: int) -> Any:
    """One effect in the database, named by the key that also names the record."""
    bodies.ledger_of(self.app).note("start", key=key, token=fencing_token, task_id=self.request.id)
    end_at("began")
    engine = create_engine(plan["database"])
    with engine.begin() as connection:
        connection.execute(text(CHARGE), {"key": self.record_key, "task_id": self.request.id})
    engine.dispose()
    end_at("effected")
    return plan["value"]


def effects(engine: Engine) -> dict[str, str]:
    """Key and task id of every effect."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT key, task_id FROM effects"))
        return dict(rows.all())


if WORLD in os.environ:
    from bench.boundaries import app

    add_charge(app)
