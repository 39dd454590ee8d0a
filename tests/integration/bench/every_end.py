"""
The bench's app whose bodies watch their own lease, for `Worker(app="bench.every_end")`.

Each body asks the lease server who holds its key: every few hundredths of a second where the plan
says ``watch`` (until that gate opens), and once more in its very last line, whatever
ends it. ``stubborn`` does the same and swallows everything that is raised in it.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from bench import bodies
from bench.app import WORLD
from bench.fenced import quick_retry
from celery_fence import FencedTask

EVERY = 0.03
"""Seconds between two looks at the lease server."""
AT_REST = 0.3
"""Seconds between two glances of a body that rests."""


def add_tasks(app: Celery) -> None:
    """Register the tasks that only these tests have."""
    options = {"base": FencedTask, "bind": True, "lock_key": "job:<key>", "miss_policy": quick_retry()}
    limits: dict[str, dict[str, Any]] = {
        "watched": {},
        "watched_soft": {"soft_time_limit": 1},
        "watched_hard": {"time_limit": 1},
        "watched_survivor": {"reject_on_worker_lost": True},
        "watched_dead_letter": {"miss_policy": "dead_letter"},
    }
    for name, more in limits.items():
        app.task(name=name, **{**options, **more})(watched_work)
    app.task(name="replaced", **options)(replaced)
    app.task(name="replaced_skip", **{**options, "miss_policy": "skip"})(replaced)


def watched_work(
    self: Any, key: str, plan: bodies.Plan | None = None, *, fencing_token: int | None = None
) -> Any:
    """`bodies.work`, with a look at the lease server in its last line."""
    try:
        return bodies.work(self, key, plan, fencing_token=fencing_token)
    finally:
        look(self, key, last=True)


def replaced(self: Any, key: str, plan: bodies.Plan, *, fencing_token: int | None = None) -> Any:
    """Hand the work over to a task of the same key; with ``after``, stay until that gate opens."""
    ledger = bodies.ledger_of(self.app)
    ledger.note("replacing", key=key, task_id=self.request.id, token=fencing_token)
    if self.request.replaced_task_nesting:
        return plan.get("value")
    try:
        return self.replace(self.app.tasks[plan.get("by", "watched")].s(key, plan))
    finally:
        ledger.note("replacement_sent", task_id=self.request.id)
        if "after" in plan:
            bodies.gate_of(self.app, plan["after"]).wait()
        ledger.note("replaced", task_id=self.request.id)


def look(task: Any, key: str, *, last: bool = False) -> None:
    """Note whether this very run holds its key, according to the lease server."""
    holder = task.lease_holder(key, {})
    ours = holder is not None and holder.owner == task.lease.owner
    bodies.ledger_of(task.app).note("look", key=key, ours=ours, last=last, token=task.lease.token)


def _watch(task: Any, gate: str) -> None:
    deadline = time.monotonic() + 60
    while not bodies.gate_of(task.app, gate).is_open:
        if time.monotonic() > deadline:
            raise TimeoutError(gate)
        if _hushed(task, gate):
            time.sleep(AT_REST)
        else:
            look(task, task.request.args[0])
            time.sleep(EVERY)


def _hushed(task: Any, gate: str) -> bool:
    """Whether the body shall rest, so that a signal finds the hub of a greenlet pool and not the body."""
    hushed = bodies.gate_of(task.app, hush(gate)).is_open
    if hushed:
        bodies.ledger_of(task.app).note("hushed", key=task.request.args[0])
    return hushed


def hush(gate: str) -> str:
    """The gate that is open while a body that watches for *gate* rests."""
    return f"{gate}.hush"


def _stubborn(task: Any, gate: str) -> None:
    while not bodies.gate_of(task.app, gate).is_open:
        try:
            _watch(task, gate)
        except TimeoutError:
            raise
        except BaseException as refused:  # noqa: BLE001 - to swallow it is what this body is for
            bodies.ledger_of(task.app).note(
                "refused", key=task.request.args[0], what_was=type(refused).__name__
            )


def _only_once(task: Any, ending: BaseException) -> Any:
    """End like this in the first run of the message; later ones return."""
    if len(bodies.ledger_of(task.app).facts("start", task_id=task.request.id)) > 1:
        return "second time"
    raise ending


bodies.HOLDS.update(watch=_watch, stubborn=_stubborn)
bodies.ENDINGS.update(
    requeue=lambda task, plan: _only_once(task, Reject("as planned", requeue=True)),
    exit_once=lambda task, plan: _only_once(task, SystemExit(3)),
    memory=lambda task, plan: _only_once(task, MemoryError("as planned")),
)


def fail_where_planned(app: Celery) -> None:
    """A result backend that can't store what becomes of a plan with ``backend``; each thread has one of its own."""
    backend = type(app.backend)
    store = backend.store_result

    def failing(self: Any, task_id: str, result: Any, state: str, *more: Any, **options: Any) -> Any:
        args = getattr(options.get("request"), "args", None) or ()
        if len(args) > 1 and isinstance(args[1], dict) and args[1].get("backend") == "fails":
            bodies.ledger_of(app).note("backend_failed", key=args[0], state=state)
            raise ConnectionError("as planned")
        return store(self, task_id, result, state, *more, **options)

    backend.store_result = failing


if WORLD in os.environ:
    from bench.app import app

    add_tasks(app)
    fail_where_planned(app)
