"""
SIGKILL at every boundary of claim - effect - record, with the effect in a real PostgreSQL.

One message for each boundary and victim: the pool child that stands there, or the whole
worker. After the redelivery there is one effect and one record, and who asks again gets
the result. A kill before the release lets the body run once more: that is why the effect
has a key of its own (docs/idempotency.md). After the release it has run once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.boundaries import add_tasks
from bench.charges import CREATE, add_charge, effects
from bench.databases import Database, new_database
from bench.waiting import wait_until
from bench.world import Bench
from celery.result import AsyncResult
from sqlalchemy import text

CONF = {
    "fence_ttl": 4.0,
    "task_reject_on_worker_lost": True,
    "worker_lost_wait": 0.3,
    "broker_transport_options": {
        "visibility_timeout": 2,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
}
NEVER = {"broker_transport_options": {"visibility_timeout": 3600}}
BEFORE = ("asked", "began", "effected", "releasing")
AFTER = ("released", "stored", "over", "noted")
BOUNDARIES = {"child": (*BEFORE, *AFTER), "worker": (*BEFORE, *AFTER, "acknowledged")}
CASES = [(victim, boundary) for victim, names in BOUNDARIES.items() for boundary in names]

pytestmark = pytest.mark.needs("postgres")


class Scene:
    """Everything is sent, killed and redelivered before the first test looks."""

    def __init__(self, bench: Bench, database: Database) -> None:
        self.bench = bench
        self.database = database
        self.engine = database.engine()
        self.sent: dict[tuple[str, str], tuple[str, AsyncResult]] = {}
        add_tasks(bench.app)
        add_charge(bench.app)

    def play(self) -> None:
        """First the whole worker dies with all its runs at their boundaries; its successor then loses its children."""
        with self.engine.begin() as connection:
            connection.execute(text(CREATE))
        doomed = self.bench.worker(app="bench.charges", concurrency=len(BOUNDARIES["worker"]) + 1, conf=NEVER)
        self._send("worker")
        doomed.kill()
        self.bench.worker(app="bench.charges", concurrency=len(BOUNDARIES["child"]))
        self._send("child")

    def _send(self, victim: str) -> None:
        for boundary in BOUNDARIES[victim]:
            key = self.bench.key()
            plan = {
                "stops_at": boundary,
                "victim": victim,
                "value": f"charged {key}",
                "database": self.url,
            }
            self.sent[victim, boundary] = key, self.bench.app.tasks["charge"].delay(key, plan)
        count = len(BOUNDARIES[victim])
        wait_until(
            lambda: len(self.bench.ledger.facts("boundary", victim=victim)) == count,
            timeout=60,
            what=f"{count} runs stand at their boundaries",
        )

    @property
    def url(self) -> str:
        return self.database.url

    def ask_again(self, key: str) -> Any:
        """What another message with the same key gets."""
        plan = {"value": "charged twice", "database": self.url}
        return self.bench.app.tasks["charge"].delay(key, plan).get(timeout=30)


@pytest.fixture(scope="module")
def scene(make_bench: Any, tmp_path_factory: Any) -> Iterator[Scene]:
    directory: Path = tmp_path_factory.mktemp("database")
    with new_database("postgres", directory) as database:
        scene = Scene(make_bench(**CONF), database)
        scene.play()
        yield scene
        scene.engine.dispose()


@pytest.mark.parametrize(("victim", "boundary"), CASES)
def test_after_a_kill_there_is_one_effect_and_one_record(scene, victim, boundary):
    key, result = scene.sent[victim, boundary]

    assert result.get(timeout=30) == f"charged {key}"
    assert effects(scene.engine)[f"charge:{key}"] == result.id
    record = scene.bench.store.record(f"charge:{key}")
    assert record.done is not None
    assert record.facts.task_id == result.id

    runs = len(scene.bench.ledger.facts("start", key=key))
    expected = {"asked": 1} if boundary == "asked" else dict.fromkeys(("began", "effected", "releasing"), 2)
    assert runs == expected.get(boundary, 1)

    assert scene.ask_again(key) == f"charged {key}"
    assert len(scene.bench.ledger.facts("start", key=key)) == runs


def test_nothing_is_left_but_what_expires(scene):
    client = scene.bench.lease_client
    wait_until(lambda: not list(scene.bench.store.leases()), what="no lease is left")

    assert len(list(scene.bench.store.records())) == len(CASES)
    assert [key for key in client.scan_iter() if client.ttl(key) < 0] == []
