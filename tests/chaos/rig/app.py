"""
The Celery app of a round, the same in the workers and in the driver.

In a worker the world comes from `CHAOS_WORLD`, a JSON object: the configuration and, under ``chaos``,
where to note and to write. There the negative control named by `CHAOS_CONTROL` is applied, if any,
and then everything is recorded.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery
from celery import signals as celery_signals
from kombu.transport.redis import Channel, QoS
from kombu.utils.encoding import bytes_to_str

from celery_fence.task.limits import allow_short_ttls
from rig.bodies import Scene
from rig.history import History, now
from rig.hooks import leave_here
from rig.ledger import Ledger
from rig.recorder import record_store
from rig.tasks import add_tasks, quick_retry

WORLD = "CHAOS_WORLD"
CONTROL = "CHAOS_CONTROL"


class App(Celery):
    """A Celery app whose tasks stay its own; Celery gives each decorated task to every app of the process."""

    def task(self, *args: Any, **options: Any) -> Any:
        """As Celery's, with `shared` off."""
        return super().task(*args, **{"shared": False, **options})


def build_app(conf: dict[str, Any]) -> Celery:
    """An app with the tasks of the rig, that is not made the current one."""
    app = App("chaos", set_as_current=False)
    app.conf.update(conf)
    allow_short_ttls(app)
    app.conf.fence_outage_policy = quick_retry()
    add_tasks(app)
    return app


def _worker_app(world: dict[str, Any]) -> Celery:
    where = world["chaos"]
    history = History(where["directory"], f"worker:{where['worker']}")
    control = os.environ.get(CONTROL)
    if control:
        from rig import controls

        controls.apply(control)
    record_store(history)
    app = build_app(world["conf"])
    app.conf.chaos_scene = Scene(history, Ledger(where["ledger"]), Path(where["directory"]), where["pool"])
    app.set_current()
    _note_messages(history, app.conf.task_default_queue)
    _note_what_is_taken(history)
    note_what_is_put_back(history)
    return app


def _note_messages(history: History, queue: str) -> None:
    """Note what is published to *queue* by this worker, and what its main process receives, the broker's copies too."""

    def received(request: Any = None, **_: Any) -> None:
        again = bool((request.delivery_info or {}).get("redelivered"))
        history.note("received", task_id=request.id, tag=request.message.delivery_tag, redelivered=again)

    began: dict[str, float] = {}

    def sending(headers: Any = None, **_: Any) -> None:
        began[headers["id"]] = now()

    def sent(headers: Any = None, routing_key: str = "", **_: Any) -> None:
        moment = began.pop(headers["id"], now())
        if routing_key == queue:
            history.note("sent", task_id=headers["id"], began=moment)

    celery_signals.task_postrun.connect(leave_here)
    celery_signals.task_received.connect(received, weak=False)
    celery_signals.before_task_publish.connect(sending, weak=False)
    celery_signals.after_task_publish.connect(sent, weak=False)


def _note_what_is_taken(history: History) -> None:
    """Note each message that Kombu has taken off its queue and noted as unacknowledged."""
    append = QoS.append

    def appended(self: QoS, message: Any, delivery_tag: str) -> None:
        append(self, message, delivery_tag)
        if "id" in message.headers:
            history.note("taken", task_id=message.headers["id"], tag=delivery_tag)

    QoS.append = appended


def note_what_is_put_back(history: History) -> None:
    """
    Note each message that Kombu puts back into its queue: rejected to be delivered again, or visible again.

    It does so in a transaction, and tries again when some message was acknowledged meanwhile: what counts is what the
    last try put back, which is nothing if it was this very message.
    """
    restore_by_tag, remove, restore = (
        QoS.restore_by_tag,
        QoS._remove_from_indices,
        Channel._do_restore_message,
    )
    here = threading.local()  # a greenlet's own with gevent

    def removed(self: QoS, tag: str, pipe: Any = None) -> Any:
        if pipe is not None:
            here.put_back = None  # another try begins
        return remove(self, tag, pipe)

    def restored(self: Channel, payload: Any, *args: Any, **options: Any) -> None:
        here.put_back = payload["headers"]["id"]
        restore(self, payload, *args, **options)

    def restored_by_tag(self: QoS, tag: str, *args: Any, **options: Any) -> None:
        began, here.put_back = now(), None
        restore_by_tag(self, tag, *args, **options)
        if here.put_back is not None:
            history.note("restored", task_id=here.put_back, tag=bytes_to_str(tag), began=began)

    QoS.restore_by_tag, QoS._remove_from_indices = restored_by_tag, removed
    Channel._do_restore_message = restored


if WORLD in os.environ:
    app = _worker_app(json.loads(os.environ[WORLD]))
