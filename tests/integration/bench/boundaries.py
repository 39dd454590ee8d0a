"""
The bench's app in which a run can end at any boundary after its body, for `Worker(app="bench.boundaries")`.

A plan names the boundary (``stops_at``) and who dies there (``victim``): a ``child`` kills itself
with SIGKILL on the spot; for a ``worker`` the child freezes there, so that the test can
kill the whole worker while each of its children stands at a boundary of its own. Only the
first run of a message stops. The hooks sit in this test app: Celery's signals, and its result
backend and the locker wrapped in the worker's processes.
"""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

from celery import Celery
from celery import signals as celery_signals
from celery._state import get_current_task
from celery.worker.request import Request

from bench import bodies
from bench.app import WORLD
from bench.fenced import quick_retry
from bench.waiting import wait_until
from celery_fence import FencedTask
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.locker import Locker

AFTER_CLAIM = 9.0
"""A TTL in seconds that is longer than Celery keeps a chord claimed for a worker that died before it sent the body."""


def add_tasks(app: Celery) -> None:
    """Register the tasks that only these tests have."""
    options = {"base": FencedTask, "bind": True, "miss_policy": quick_retry()}
    app.task(name="join_fenced", lock_key="joined:<key>", **options)(bodies.join)
    app.task(name="unacked", lock_key="job:<key>", acks_on_failure_or_timeout=False, **options)(bodies.work)
    app.task(name="early_job", lock_key="job:<key>", acks_late=False, **options)(bodies.work)
    app.task(name="flagged", lock_key="job:<key>", lost_policy="flag", **options)(bodies.work)
    app.task(name="slow_survivor", lock_key="job:<key>", lock_ttl=AFTER_CLAIM, **options)(bodies.work)


def stop_at(boundary: str, request: Any = None) -> bool:
    """Whether the current message's first run is to end at *boundary*; then that is noted."""
    if request is None:
        task = get_current_task()
        request = task.request if task is not None else None
    key, plan = _plan_of(request)
    if plan.get("stops_at") != boundary:
        return False
    ledger = bodies.ledger_of(app)
    if ledger.facts("boundary", key=key):
        return False
    ledger.note("boundary", key=key, boundary=boundary, victim=plan["victim"], task_id=request.id)
    return True


def end_at(boundary: str) -> None:
    """Die or freeze here, if that is the plan."""
    if stop_at(boundary):
        _, plan = _plan_of(get_current_task().request)
        os.kill(os.getpid(), signal.SIGKILL if plan["victim"] == "child" else signal.SIGSTOP)


def _plan_of(request: Any) -> tuple[str, dict[str, Any]]:
    args = getattr(request, "args", None) or ()
    return (args[0], args[1]) if len(args) > 1 and isinstance(args[1], dict) else ("", {})


def _after_task(task: Any, task_id: str) -> None:
    wait_until(lambda: bodies.ledger_of(task.app).facts("task_success", task_id=task_id))


def _first_raises(task: Any, plan: bodies.Plan) -> Any:
    """The first run of the message fails, each later one returns."""
    first = bodies.ledger_of(task.app).facts("start", task_id=task.request.id)[0]
    if first["token"] == task.lease.token:
        raise ValueError(plan["value"])
    return plan["value"]


def _replace(task: Any, plan: bodies.Plan) -> Any:
    return task.replace(task.app.tasks["plain"].s(plan["replaced_by"], {"value": plan["value"]}))


bodies.HOLDS["after_task"] = _after_task
bodies.ENDINGS.update(
    first_raises=_first_raises, replace=_replace, large=lambda task, plan: plan["value"] * 9000
)


def _ends_after(owner: Any, name: str, boundary: str) -> None:
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = inner(self, *args, **kwargs)
        end_at(boundary)
        return value

    setattr(owner, name, wrapped)


def _ends_before(owner: Any, name: str, boundary: str) -> None:
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        end_at(boundary)
        return inner(self, *args, **kwargs)

    setattr(owner, name, wrapped)


def _await_the_note(**_: Any) -> None:
    """The boundary after the note: the heartbeat writes it, so wait for it, but only where that is the plan."""
    task = get_current_task()
    if task is not None and _plan_of(task.request)[1].get("stops_at") == "noted":
        wait_until(lambda: not process_heartbeat().noting, what="the note is written")
        end_at("noted")


def _hold_back_acknowledgement() -> None:
    """In the worker's main process: the acknowledgement that a plan names is never sent."""
    acknowledge = Request.acknowledge

    def wrapped(self: Request) -> None:
        request = type("Message", (), {"args": self._args, "id": self.id})
        if not stop_at("acknowledged", request):
            acknowledge(self)

    Request.acknowledge = wrapped


def install(app: Celery) -> None:
    """Put the hooks in place, in the worker's main process before it forks; celery-fence's own come before them."""
    app.finalize()
    backend = type(app.backend)
    _ends_after(Locker, "release", "released")
    _ends_before(Locker, "release", "releasing")
    _ends_after(Locker, "acquire", "asked")
    _ends_after(backend, "store_result", "stored")
    _ends_after(backend, "on_chord_part_return", "counted")
    celery_signals.before_task_publish.connect(
        lambda sender=None, **_: end_at(f"publishing:{sender}"), weak=False
    )
    celery_signals.after_task_publish.connect(
        lambda sender=None, **_: end_at(f"published:{sender}"), weak=False
    )
    celery_signals.task_postrun.connect(lambda **_: end_at("over"), weak=False)
    celery_signals.task_postrun.connect(_await_the_note, weak=False)
    _hold_back_acknowledgement()


if WORLD in os.environ:
    from bench.app import app

    add_tasks(app)
    install(app)
