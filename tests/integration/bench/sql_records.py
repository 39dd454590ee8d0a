"""Tasks whose effect and record are one transaction of a real database, for `Worker(app="bench.sql_records")`."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any

from celery import Celery
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

from bench import bodies
from bench.app import WORLD
from bench.boundaries import end_at
from bench.fenced import quick_retry
from celery_fence import FencedTask
from celery_fence.fencing.idempotency import claim, once

ITEMS = 50


def add_tasks(app: Celery) -> None:
    """Register the tasks that only these tests have; their database is the one in ``bench_database``."""
    options = {"base": FencedTask, "bind": True, "miss_policy": quick_retry()}
    once_each = {"idempotency_key": "payment:<key>", **options}
    app.task(name="pay", lock_key="job:<key>", **once_each)(pay)
    app.task(name="pay_in_parts", lock_key="job:<key>", **once_each)(pay_in_parts)
    app.task(name="send_batch", lock_key="job:<key>", **options)(send_batch)


def pay(self: Any, key: str, plan: bodies.Plan) -> Any:
    """Claim, effect, record, in one transaction."""
    _note_start(self, key)
    with _transaction(self.app) as session:
        end_at("begun")
        record = claim(session)
        end_at("claimed")
        _effect(session, key)
        end_at("effect")
        result = record.complete({"charged": key})
        end_at("completed")
    end_at("committed")
    return result


def pay_in_parts(self: Any, key: str, plan: bodies.Plan) -> Any:
    """The claim is committed by itself; effect and record are committed together."""
    _note_start(self, key)
    with _transaction(self.app) as session:
        record = claim(session)
    end_at("claim committed")
    with _transaction(self.app) as session:
        record = claim(session)
        end_at("claimed again")
        _effect(session, key)
        result = record.complete({"charged": key})
        end_at("completed")
    end_at("committed")
    return result


def send_batch(self: Any, key: str, plan: bodies.Plan) -> int:
    """Fifty items, each a transaction of its own."""
    _note_start(self, key)
    for number in range(ITEMS):
        with _transaction(self.app) as session:
            once(session, f"mail:{number}", _effect, session, f"{key}/{number}")
        end_at(f"item {number + 1}")
    return ITEMS


@contextmanager
def _transaction(app: Any) -> Any:
    engine = create_engine(app.conf.bench_database, poolclass=NullPool)
    with Session(engine) as session, session.begin():
        yield session


def _effect(session: Session, work: str) -> None:
    session.execute(text("INSERT INTO effects (work) VALUES (:work)"), {"work": work})


def _note_start(task: Any, key: str) -> None:
    run = {"run": f"{key}-{task.lease.token}", "key": key, "token": task.lease.token}
    bodies.ledger_of(task.app).note("start", **run, task_id=task.request.id)


if WORLD in os.environ:
    from bench.boundaries import app

    add_tasks(app)
