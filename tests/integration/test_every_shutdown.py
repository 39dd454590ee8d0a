"""
Every end that takes the worker with it, in every pool: the shutdowns, SIGKILL, and what stops a worker by accident.

For each pool one worker after another is brought to its end, each with a queue and a run of its own, and then
one heir takes all the queues over. The tests look at what was seen on the way and at what the heir
made of it: nothing is lost, and a body that had ended doesn't run again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from bench.every_end import add_tasks, hush
from bench.messages import unacknowledged
from bench.waiting import wait_until
from bench.worker import Worker
from bench.world import Bench
from celery.result import AsyncResult

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
LONG_TTL, SHORT_TTL = 30.0, 2.0
SOON = 3.0
"""Seconds for a release to show on a busy machine; far from the long TTL."""
NEVER = {"visibility_timeout": 3600, "unacked_mutex_expire": 1}
EAGER_BROKER = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 1,  # a worker that is killed while it restores closes that off for this long
}


@dataclass(frozen=True)
class Outcome:
    """How the bodies ended that ran for the message, what is stored at last, and when the key was given back."""

    bodies: tuple[str, ...]
    state: str = "SUCCESS"
    is_kept: bool = False
    """The blow doesn't stop the body: it keeps its key and ends when the test lets it."""
    expires: bool = False
    stays: bool = False
    """The worker doesn't end by it, and never acknowledges the message; the test ends it politely."""


@dataclass(frozen=True)
class Death:
    """What ends the worker (a signal, or the plan of its run), and what that leaves in each pool."""

    usually: Outcome
    signal: signal.Signals | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    """What the worker prints when it has taken the signal."""
    conf: dict[str, Any] = field(default_factory=dict)
    otherwise: dict[str, Outcome] = field(default_factory=dict)

    def outcome(self, pool: str) -> Outcome:
        return self.otherwise.get(pool, self.usually)


ONCE = Outcome(("return",), is_kept=True)
STOPPED_AND_RUN_AGAIN = Outcome(("SystemExit", "return"))
NO_JOB_TO_KILL = Outcome(("NotImplementedError",), state="FAILURE")
"""The solo pool can't end a job: Celery's shutdown raises that in the midst of the body, and stores it."""
NOT_IN_TIME = {"worker_soft_shutdown_timeout": 0.8}
IN_TIME = {"worker_soft_shutdown_timeout": 6.0}
WATCH = {"watch": "gate"}
DEATHS = {
    "soft, in time": Death(ONCE, signal.SIGQUIT, WATCH, "Soft Shutdown", IN_TIME, {"solo": NO_JOB_TO_KILL}),
    "warm": Death(ONCE, signal.SIGTERM, WATCH, "Warm shutdown"),
    "soft": Death(
        ONCE,
        signal.SIGQUIT,
        WATCH,
        "Soft Shutdown",
        NOT_IN_TIME,
        {"prefork": STOPPED_AND_RUN_AGAIN, "solo": NO_JOB_TO_KILL},
    ),
    "cold": Death(
        ONCE,
        signal.SIGQUIT,
        WATCH,
        "Hitting Ctrl+C again",
        otherwise={
            "prefork": STOPPED_AND_RUN_AGAIN,
            "solo": NO_JOB_TO_KILL,
            # Celery acknowledges what it kills then: for a plain task as well.
            "gevent": Outcome(("GreenletExit",), state="PENDING"),
            "eventlet": Outcome(("GreenletExit",), state="PENDING"),
        },
    ),
    "MemoryError": Death(
        Outcome(("MemoryError",), state="FAILURE", stays=True),
        plan={"then": "memory"},
        otherwise={
            "prefork": Outcome(("MemoryError",), state="FAILURE"),
            "solo": Outcome(("MemoryError",), state="FAILURE"),
        },
    ),
    "SystemExit": Death(
        Outcome(("SystemExit", "return"), stays=True),
        plan={"then": "exit_once"},
        otherwise={
            "prefork": Outcome(("SystemExit",), state="FAILURE", stays=True),
            "solo": Outcome(("SystemExit", "return")),
        },
    ),
    "SIGKILL": Death(Outcome(("return",), expires=True), signal.SIGKILL, WATCH),
}


@dataclass
class Played:
    """One worker's run, and what was seen of it."""

    worker: Worker
    queue: str
    key: str
    gate: Any
    result: AsyncResult
    freed_after: float = -1.0
    """Seconds from the end of the body, or of the worker that was killed, to the release of the key."""


class Scene:
    """One pool: every death is played before the first test looks."""

    def __init__(self, bench: Bench, pool: str) -> None:
        self.bench = bench
        self.pool = pool
        self.played: dict[str, Played] = {}
        add_tasks(bench.app)

    def play(self) -> None:
        workers = {name: self._launch(name) for name in DEATHS}
        for name, worker in workers.items():
            self.played[name] = self._start_run(name, worker.await_ready())
        for name, played in self.played.items():
            self._strike(DEATHS[name], played)
        for name, played in self.played.items():
            self._see_out(DEATHS[name], played)
        for played in self.played.values():
            played.worker.await_exit()
        queues = ",".join(played.queue for played in self.played.values())
        heir = {"broker_transport_options": EAGER_BROKER}
        self.bench.worker(app="bench.every_end", concurrency=3, conf=heir, options=["-Q", queues])

    def _launch(self, name: str) -> Worker:
        death = DEATHS[name]
        ttl = SHORT_TTL if death.outcome(self.pool).expires else LONG_TTL
        conf = {"task_default_queue": self._queue(name), "fence_ttl": ttl, **death.conf}
        return self.bench.launch(app="bench.every_end", pool=self.pool, concurrency=1, conf=conf)

    def _queue(self, name: str) -> str:
        return f"{self.bench.queue}.{list(DEATHS).index(name)}"

    def _start_run(self, name: str, worker: Worker) -> Played:
        key, gate = self.bench.key(), self.bench.gate()
        plan = {"value": "done", **DEATHS[name].plan}
        plan |= {"watch": gate.path.name} if "watch" in plan else {}
        result = self.bench.send("watched", key, plan, queue=self._queue(name))
        wait_until(lambda: self.bench.ledger.facts("look", key=key), what=f"{name}: the body looks")
        return Played(worker, self._queue(name), key, gate, result)

    def _strike(self, death: Death, played: Played) -> None:
        if death.signal is None:
            return
        with self._at_rest(played):
            played.worker.kill(death.signal)
            if death.says:
                wait_until(lambda: death.says in played.worker.log, what=f"the worker says {death.says}")
        if death.outcome(self.pool).expires:
            self._free(played, within=SHORT_TTL + 1)
            played.gate.open()

    @contextmanager
    def _at_rest(self, played: Played) -> Iterator[None]:
        """
        Where greenlets share the main thread, let the signal meet the hub.

        Celery's handler runs in whatever it interrupts, and waits there: in a body, for that body.
        """
        gate = self.bench.gate(hush(played.gate.path.name))
        if self.pool in ("gevent", "eventlet"):
            gate.open()
            wait_until(lambda: self.bench.ledger.facts("hushed", key=played.key), what="the body rests")
        yield
        gate.path.unlink(missing_ok=True)

    def _see_out(self, death: Death, played: Played) -> None:
        """Until the body has ended, and the worker will."""
        outcome = death.outcome(self.pool)
        if outcome.expires:
            return
        if outcome.is_kept:
            self._goes_on(played.key)
            played.gate.open()
        wait_until(lambda: self.bench.ledger.ends(played.key), what="the body ends")
        self._free(played, within=SOON)
        played.gate.open()
        if outcome.stays:
            played.worker.kill(signal.SIGTERM)

    def _goes_on(self, key: str) -> None:
        """Longer than the time a soft shutdown gives, and than the renewal of any lease takes to show."""
        facts = self.bench.ledger.facts
        last = facts("look", key=key)[-1]["at"]
        wait_until(lambda: facts("look", key=key)[-1]["at"] > last + 1.2, what="the body goes on")

    def _free(self, played: Played, within: float) -> None:
        began = time.monotonic()
        wait_until(lambda: self.bench.holder(played.key) is None, timeout=within, what="the key is free")
        played.freed_after = time.monotonic() - began


@pytest.fixture(scope="module", params=POOLS)
def scene(make_bench, request) -> Scene:
    scene = Scene(make_bench(fence_ttl=LONG_TTL, broker_transport_options=NEVER), request.param)
    scene.play()
    return scene


@pytest.mark.parametrize("name", DEATHS)
def test_the_key_is_free_when_the_body_is_over_and_nothing_is_lost(scene, name):
    played, outcome, ledger = scene.played[name], DEATHS[name].outcome(scene.pool), scene.bench.ledger

    wait_until(lambda: played.result.state == outcome.state, what=f"{played.result.state}: {outcome.state}")
    wait_until(lambda: played.result.id not in unacknowledged(scene.bench), what="the message is done with")
    assert tuple(fact["outcome"] for fact in ledger.ends(played.key)) == outcome.bodies
    assert [look for look in ledger.facts("look", key=played.key) if not look["ours"]] == []
    assert 0 <= played.freed_after <= (SHORT_TTL + 1 if outcome.expires else SOON)
    assert ledger.tokens(played.key) == sorted(set(ledger.tokens(played.key)))
    assert scene.bench.misses(played.key) == 0
    wait_until(lambda: scene.bench.holder(played.key) is None, timeout=SOON, what="the key is free at last")
