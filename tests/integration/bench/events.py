"""Celery's event stream as a monitor such as Flower sees it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.events import EventReceiver
from celery.events.state import State

from bench.waiting import wait_until

HELLO = "bench-hello"


class Monitor:
    """A `celery.events` State that a thread keeps up to date, and the raw events."""

    def __init__(self) -> None:
        self.state = State()
        self.events: list[dict[str, Any]] = []

    def of(self, task_id: str, kind: str | None = None) -> list[dict[str, Any]]:
        """The events about one task, of one kind."""
        return [
            event
            for event in list(self.events)
            if event.get("uuid") == task_id and kind in (None, event["type"])
        ]

    def kinds(self, task_id: str) -> list[str]:
        """The kinds of event about one task, in the order of arrival."""
        return [event["type"] for event in self.of(task_id)]

    def state_of(self, task_id: str) -> str | None:
        """The state that a monitor shows."""
        task = self.state.tasks.get(task_id)
        return None if task is None else task.state

    def wait_for_state(self, task_id: str, state: str) -> None:
        """Wait until a monitor shows *state*."""
        wait_until(lambda: self.state_of(task_id) == state, what=f"{task_id} shown as {state}")

    def take(self, event: dict[str, Any]) -> None:
        """One event from the stream."""
        self.state.event(dict(event))
        self.events.append(event)


def is_heard(app: Celery, monitor: Monitor) -> bool:
    """Send one more event of our own; whether one has come."""
    with app.events.default_dispatcher() as dispatcher:
        dispatcher.send(HELLO)
    return any(event["type"] == HELLO for event in list(monitor.events))


@contextmanager
def watching(app: Celery) -> Iterator[Monitor]:
    """A `Monitor` on *app*'s events for the length of the block."""
    monitor, ready = Monitor(), threading.Event()
    with app.connection_for_read() as connection:
        receiver = EventReceiver(connection, handlers={"*": monitor.take}, app=app)
        receiver.on_consume_ready = lambda *_, **__: ready.set()
        thread = threading.Thread(
            target=lambda: [None for _ in receiver.consume(limit=None, wakeup=False)], daemon=True
        )
        thread.start()
        assert ready.wait(20), "no event consumer within 20 s"
        # On Redis it subscribes only after it has said that it is ready.
        wait_until(lambda: is_heard(app, monitor), what="the monitor hears")
        yield monitor
        receiver.should_stop = True
        thread.join(10)
