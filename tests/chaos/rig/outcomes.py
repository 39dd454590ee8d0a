"""What became of each message: its stored result, and the queue of dead letters."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from rig.history import Reader
from rig.transit import Transit
from rig.world import DEAD_LETTERS, QUEUE, World

FAILURES = {
    "DeadLettered": "dead_lettered",
    "Contended": "raised",
    "LeaseLost": "lost_failure",
}
LOST = "lost_by_broker"
FINAL = ("SUCCESS", "FAILURE", "REVOKED")


class Outcomes:
    """Reads the results of what was sent, until each message has one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: dict[str, str] = {}
        """Task id -> the last state that was seen."""
        self.ended: dict[str, tuple[str, str]] = {}
        """Task id -> state and kind."""
        self._transit = Transit()
        self._reader = Reader(world.directory)

    def expect(self, task_ids: list[str]) -> None:
        """These have been sent."""
        self.waiting.update(dict.fromkeys(task_ids, "PENDING"))

    def look(self) -> None:
        """Move what has ended from `waiting` to `ended`."""
        ids = list(self.waiting)
        if not ids:
            return
        found = self.world.results.mget([f"celery-task-meta-{task_id}" for task_id in ids])
        for task_id, raw in zip(ids, found, strict=True):
            meta = json.loads(raw) if raw else {"status": "PENDING"}
            self.waiting[task_id] = meta["status"]
            if meta["status"] in FINAL:
                del self.waiting[task_id]
                self.ended[task_id] = (meta["status"], _kind(meta))

    @property
    def queues_are_empty(self) -> bool:
        """Whether the brokers have no message left, neither waiting nor delivered and unacknowledged."""
        return not any(client.llen(QUEUE) or client.hlen("unacked") for client in self.world.brokers)

    def give_up_what_the_broker_lost(self) -> None:
        """End what will never come: call it once the queues are empty (see `rig.transit`)."""
        self._transit.read(self._reader.news())
        for task_id in self.waiting.keys() & set(self._transit.losses().explained):
            self.ended[task_id] = (self.waiting.pop(task_id), LOST)

    def note(self) -> None:
        """
        Write the outcomes into the driver's history.

        What is known now of each message again, since a second outcome over the first one would be a violation.
        """
        first, self.ended = (
            self.ended,
            {task_id: end for task_id, end in self.ended.items() if end[1] == LOST},
        )
        self.waiting.update(
            {task_id: state for task_id, (state, _) in first.items() if task_id not in self.ended}
        )
        self.look()
        letters = self._letters()
        for task_id in first | self.ended | dict.fromkeys(self.waiting):
            state, kind = self.ended.get(task_id, (self.waiting.get(task_id), "none"))
            self.world.history.note(
                "outcome",
                task_id=task_id,
                state=state,
                kind=kind,
                first=first.get(task_id, (None, None))[1],
                letters=letters[task_id],
            )

    def _letters(self) -> Counter[str]:
        return Counter(
            json.loads(raw)["headers"]["id"]
            for client in self.world.brokers
            for raw in client.lrange(DEAD_LETTERS, 0, -1)
        )


def _kind(meta: dict[str, Any]) -> str:
    result = meta.get("result")
    if meta["status"] == "SUCCESS":
        skipped = isinstance(result, dict) and result.get("celery_fence") == "skipped"
        return "skipped" if skipped else "done"
    return FAILURES.get(result.get("exc_type") if isinstance(result, dict) else "", "failure")
