"""
The Celery app of a world, the same in the workers and in the test process.

The world comes from `BENCH_WORLD`, a JSON object with the whole configuration.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery
from celery import signals as celery_signals
from kombu import Exchange, Queue

from bench import bodies
from bench.redelivery import sweep_often

WORLD = "BENCH_WORLD"
HOOKS = ("task_success", "task_failure", "task_retry", "task_postrun", "task_revoked", "task_rejected")


class App(Celery):
    """A Celery app whose tasks stay its own; Celery gives each decorated task to every app of the process."""

    def task(self, *args: Any, **options: Any) -> Any:
        """As Celery's, with `shared` off."""
        return super().task(*args, **{"shared": False, **options})


def build_app(conf: dict[str, Any]) -> Celery:
    """An app with every task of the bench, that is not made the current one."""
    app = App(conf["bench_name"], set_as_current=False)
    app.conf.update(conf)
    for suffix, binding in conf.get("bench_bindings", {}).items():
        exchange = Exchange(f"{conf['bench_name']}.topic", type="topic")
        queue = Queue(conf["task_default_queue"] + suffix, exchange, routing_key=binding)
        app.conf.task_queues = [*(app.conf.task_queues or ()), queue]
    for name, body in {"join": bodies.join, "look_plain": bodies.look}.items():
        app.task(bind=True, name=name)(body)
    # Late, so that one which runs in a worker that a test kills comes again.
    app.task(bind=True, name="plain", acks_late=True)(bodies.work)
    app.task(name="errback")(bodies.errback)
    if conf.get("bench_fenced", True):
        from bench.fenced import add_fenced_tasks

        add_fenced_tasks(app)
    return app


def listen(app: Celery) -> None:
    """Write Celery's own task signals of this process to the ledger, for tests that count hooks."""
    for hook in HOOKS:
        _write_down(hook, getattr(celery_signals, hook), app)


def _write_down(hook: str, signal: Any, app: Celery) -> None:
    def receiver(sender: Any = None, task_id: str | None = None, request: Any = None, **_: Any) -> None:
        whose = (
            task_id or getattr(request, "id", None) or getattr(getattr(sender, "request", None), "id", None)
        )
        bodies.ledger_of(app).note(hook, task_id=whose, task=getattr(sender, "name", str(sender)))

    signal.connect(receiver, weak=False)


def linger(sender: Any = None, **_: Any) -> None:
    """Make the time between the end of a body and Celery's last hook long enough to be noticed."""
    time.sleep(sender.app.conf.get("bench_linger", 0.0))


if WORLD in os.environ:
    sweep_often()
    app = build_app(json.loads(os.environ[WORLD]))
    app.set_current()
    listen(app)
    celery_signals.task_success.connect(linger)
    if app.conf.bench_fenced:
        from bench.fenced import listen_to_fence

        listen_to_fence(app)
