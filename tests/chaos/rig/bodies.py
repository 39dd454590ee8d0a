"""
The task body: hold the key for a while and write, step by step, and note all of it.

Each step works, checks its lease, and then writes; between check and write some bodies
wait, as a slow statement would: whoever is frozen just there comes back with a stale token.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Task
from celery.exceptions import Reject

from celery_fence import LeaseLost
from celery_fence.task.run import run_of
from rig import hooks
from rig.history import History, now
from rig.ledger import Effect, Ledger, StaleWrite

HEALED = "healed"
"""A file in the run directory, made by the driver when the faults are over."""


class PlannedError(RuntimeError):
    """The body's plan says that it fails."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the bodies of one worker process note and write."""

    history: History
    ledger: Ledger
    directory: Path
    pool: str

    @classmethod
    def of(cls, app: Any) -> Scene:
        """That of *app*, which the rig's app module has set."""
        return app.conf.chaos_scene

    @property
    def healed(self) -> bool:
        """Whether the driver has ended all faults: then bodies harm nobody any more."""
        return (self.directory / HEALED).exists()


def work(self: Any, key: str, plan: dict[str, Any], *, fencing_token: int | None = None) -> str:
    """Do what *plan* says, and note the beginning and the end."""
    scene, lease, process = Scene.of(self.app), self.lease, os.getpid()
    run = {"run": uuid.uuid4().hex[:12], "key": key, "owner": lease.owner, "token": fencing_token}
    note, request = scene.history.note, self.request
    note(
        "start",
        **run,
        task_id=request.id,
        name=self.name,
        retries=request.retries,
        delivery=run_of(request).identity,
    )
    how = "error"
    try:
        _steps(self, scene, run, plan)
        how = "returned"
    except LeaseLost:
        how = "lost"
        raise
    finally:
        if os.getpid() == process:  # not in a fork that is on its way out
            note("end", run=run["run"], how=how)
    return run["run"]


def _steps(task: Task, scene: Scene, run: dict[str, Any], plan: dict[str, Any]) -> None:
    for number, (seconds, gap) in enumerate(plan["steps"]):
        _rest(task, scene, seconds)
        if number == 0 and _is_to_strike(task, scene, plan):
            hooks.strike(scene, plan, task.request.id)
        _section(task, scene, run)
        _rest(task, scene, gap)
        _write(
            scene,
            run,
            Effect(
                run["key"],
                run["token"],
                run["owner"],
                task.request.id,
                run["run"],
                f"{task.request.id}:{number}",
            ),
        )
    _end(task, scene, plan)


def _is_to_strike(task: Any, scene: Scene, plan: dict[str, Any]) -> bool:
    """Once for each message: one that lost its lease by its own hook would lose it again and again."""
    return "hook" in plan and not scene.healed and run_of(task.request).notes.losses == 0


def _rest(task: Any, scene: Scene, seconds: float) -> None:
    """Sleep, and note now and then that this process is awake."""
    step, until = task.app.conf.fence_ttl / 10, now() + seconds
    while (left := until - now()) > step:
        time.sleep(step)
        scene.history.note("awake", task_id=task.request.id)
    time.sleep(max(left, 0.0))


def _section(task: Any, scene: Scene, run: dict[str, Any]) -> None:
    before, passed = now(), False
    try:
        task.lease.check()
        passed = True
    finally:
        scene.history.note("section", **run, before=before, passed=passed)


def _write(scene: Scene, run: dict[str, Any], effect: Effect) -> None:
    outcome, seen = "error", None
    try:
        scene.ledger.write(effect)
        outcome = "accepted"
    except StaleWrite as stale:
        outcome, seen = "refused", stale.seen
        raise
    finally:
        scene.history.note("write", **run, effect=effect.effect, outcome=outcome, seen=seen)


def _end(task: Any, scene: Scene, plan: dict[str, Any]) -> None:
    if plan.get("then") == "raise":
        raise PlannedError
    if plan.get("then") == "requeue" and _first_time(scene, task.request.id):
        scene.history.note("requeued", task_id=task.request.id)
        raise Reject("as planned", requeue=True)


def _first_time(scene: Scene, task_id: str) -> bool:
    """Once for each message, also among its copies: the broker's own flag doesn't survive a copy's being put off."""
    requeued = scene.directory / "requeued"
    requeued.mkdir(exist_ok=True)
    try:
        (requeued / task_id).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
