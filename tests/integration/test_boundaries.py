"""
SIGKILL at every boundary between the body's return and the acknowledgement.

Each scene sends one message for each boundary and kind of work, lets each run stand still or
die exactly there, and then looks at what the redelivered copies made of it: the body
has run once, what follows has run, and ``get()`` returns the value. The victims are the pool child
(the message comes back by ``task_reject_on_worker_lost``) and the whole worker (by the
broker).

What isn't fenced (here the link and the plain step) may run twice where the process died after
publishing it, as in Celery; a fenced step or chord body runs once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from bench.boundaries import add_tasks
from bench.brokers import delete_queues
from bench.waiting import wait_until
from bench.world import Bench
from celery import chord, uuid
from celery.result import AsyncResult

TTL = 1.0
EAGER_BROKER = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
NEVER = {"visibility_timeout": 3600}
CONF = {
    "fence_ttl": TTL,
    "task_reject_on_worker_lost": True,
    "worker_lost_wait": 0.3,
    "broker_connection_timeout": 1.0,
}
VICTIMS = ("child", "worker")

WORKS = {
    "a call with a link": ("released", "published:join", "stored"),
    "a chain whose next step is fenced": ("released", "published:join_fenced", "stored"),
    "a chain whose next step is plain": ("released", "published:join", "stored"),
    "the last part of a chord": (
        "released",
        "stored",
        "publishing:join_fenced",
        "published:join_fenced",
        "counted",
    ),
    "the first part of a chord": ("released", "stored", "counted"),
}
AT_THE_END = {"child": ("over", "noted"), "worker": ("over", "noted", "acknowledged")}
CASES = [
    pytest.param(victim, work, boundary, id=f"{victim}-{work}-{boundary}")
    for victim in VICTIMS
    for work, boundaries in WORKS.items()
    for boundary in (*boundaries, *AT_THE_END[victim])
]


@dataclass(frozen=True)
class Sent:
    """One message that is to be stopped at a boundary, and what follows from it."""

    key: str
    then: str
    result: AsyncResult
    final: AsyncResult | None
    expected: Any


class Scene:
    """One broker: everything is sent, killed and redelivered before the first test looks."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.followers = f"{bench.queue}.then"
        """The queue of everything that isn't killed itself: no worker that consumes it is.

        Kombu's Redis transport loses a message whose consumer dies between fetching and noting it.
        """
        self.killed = {victim: bench.gate(f"{victim} was killed") for victim in VICTIMS}
        self.sent: dict[tuple[str, str, str], Sent] = {}
        add_tasks(bench.app)

    def play(self) -> None:
        """First the whole worker dies with all its runs at their boundaries; its successor then loses its children."""
        self.bench.worker(
            app="bench.boundaries",
            conf=self._patient(),
            options=("-Q", self.followers),
            concurrency=len(AT_THE_END["worker"]) + len(WORKS["the first part of a chord"]) + 2,
        )
        doomed = self.bench.worker(
            app="bench.boundaries", concurrency=len(self._of("worker")) + 2, conf=self._patient()
        )
        self._send("worker")
        self._await_boundaries("worker")
        doomed.kill()
        self.killed["worker"].open()
        self.bench.worker(app="bench.boundaries", concurrency=12)
        self._send("child")
        self._await_boundaries("child")
        self.killed["child"].open()

    def kills(self, victim: str) -> list[dict[str, Any]]:
        """The boundaries at which somebody stood when it was killed."""
        return self.bench.ledger.facts("boundary", victim=victim)

    def _patient(self) -> dict[str, Any]:
        """The doomed worker doesn't take back what its own frozen runs hold."""
        return {"broker_transport_options": {**self.bench.conf.get("broker_transport_options", {}), **NEVER}}

    def _of(self, victim: str) -> list[tuple[str, str]]:
        cases = [case.values for case in CASES]
        return [(work, boundary) for whom, work, boundary in cases if whom == victim]

    def _send(self, victim: str) -> None:
        for work, boundary in self._of(victim):
            self.sent[victim, work, boundary] = self._send_one(victim, work, boundary)

    def _send_one(self, victim: str, work: str, boundary: str) -> Sent:
        bench, key, then = self.bench, self.bench.key(), self.bench.key("then")
        plan = {"value": f"value of {key}", "stops_at": boundary, "victim": victim}
        task = bench.app.tasks["slow_survivor" if boundary.startswith("publishing") else "survivor"]
        fenced = bench.app.tasks["join_fenced"].s(then).set(queue=self.followers)
        plain = bench.app.tasks["join"].s(then).set(queue=self.followers)
        match work:
            case "a call with a link":
                result = task.apply_async((key, plan), link=plain)
                return Sent(key, then, result, None, plan["value"])
            case "a chain whose next step is fenced":
                final = (task.s(key, plan) | fenced).apply_async()
                return Sent(key, then, final.parent, final, plan["value"])
            case "a chain whose next step is plain":
                final = (task.s(key, plan) | plain).apply_async()
                return Sent(key, then, final.parent, final, plan["value"])
        dying, ids = task.s(key, plan), (uuid(), uuid())
        other = {"value": "other"}
        if work.startswith("the last"):
            plan["after_task"] = ids[1]
        else:
            other["gate"] = self.killed[victim].path.name
        header = [
            bench.app.tasks["plain"].s(bench.key("other"), other).set(task_id=ids[1], queue=self.followers),
            dying.set(task_id=ids[0]),
        ]
        final = chord(header)(fenced)
        return Sent(key, then, bench.app.AsyncResult(ids[0]), final, ["other", plan["value"]])

    def _await_boundaries(self, victim: str) -> None:
        count = len(self._of(victim))
        wait_until(
            lambda: len(self.kills(victim)) == count,
            timeout=60,
            what=f"{count} runs stand at their boundaries",
        )


@pytest.fixture(scope="module", params=["redis", "classic"])
def scene(request: pytest.FixtureRequest, make_bench: Any) -> Iterator[Scene]:
    kind = request.param
    options = {"broker_transport_options": EAGER_BROKER} if kind == "redis" else {}
    scene = Scene(make_bench(kind, **CONF, **options))
    scene.play()
    yield scene
    if kind != "redis":
        scene.bench.stop_workers()
        delete_queues(scene.bench.broker.url, scene.followers)


@pytest.mark.parametrize(("victim", "work", "boundary"), CASES)
def test_after_a_kill_the_copy_completes_what_was_cut_off_and_the_body_has_run_once(
    scene, victim, work, boundary
):
    sent = scene.sent[victim, work, boundary]
    value = sent.expected if not isinstance(sent.expected, list) else sent.expected[-1]
    ledger = scene.bench.ledger

    assert sent.result.get(timeout=30) == value
    wait_until(lambda: ledger.facts("join", key=sent.then), what="what follows has run")
    if sent.final is not None:
        assert sent.final.get(timeout=30) == sent.expected
    assert len(ledger.starts(sent.key)) == 1
    followed = ledger.facts("join", key=sent.then)
    assert all(each["results"] == sent.expected for each in followed)
    fenced = "fenced" in work or "chord" in work
    assert len(followed) <= (1 if fenced or boundary == "released" else 2)


@pytest.mark.parametrize("victim", VICTIMS)
def test_every_boundary_was_killed_at(scene, victim, record_property):
    kills = scene.kills(victim)
    record_property("kills", f"{scene.bench.kind}, {victim}: {len(kills)}")

    assert len(kills) == len([case for case in CASES if case.values[0] == victim])


def test_nothing_is_left_but_what_expires(scene):
    client = scene.bench.lease_client
    wait_until(lambda: not list(scene.bench.store.leases()), what="no lease is left")

    assert [key for key in client.scan_iter() if client.ttl(key) < 0] == []
