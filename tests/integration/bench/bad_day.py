"""
The bench while the way to its lease server is bad, for `Worker(app="bench.bad_day")`.

Two workers share the keys. The *far* one reaches the lease server through a proxy that does to it
what networks do, the *near* one through another, which only ever leads elsewhere. A `Day` has a run
on the far worker in each phase of its lease while a fault strikes: one asks for its key, one holds
it, one ends and releases it. On the near worker somebody waits for each of the keys.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import ExitStack
from typing import Any

from celery import Celery
from celery.result import AsyncResult
from celery.signals import worker_process_shutdown

from bench import bodies
from bench.app import WORLD
from bench.fenced import quick_retry
from bench.ledger import Gate, Ledger
from bench.waiting import wait_until
from bench.world import Bench
from celery_fence import FencedTask
from celery_fence.stores.redis.scripts import load_scripts
from celery_fence.testing.proxy import Proxy
from celery_fence.testing.servers import EmbeddedServer, embedded_server

TTL = 3.2
TIMEOUT = TTL / 8
"""What one try of a call to the lease server may take, in seconds: `celery_fence.task.install.store_timeout`."""

LONG_TTL = 4 * TTL
"""Of the task ``"enduring"``, so long that many tries fail before its trust ends, also on a loaded machine."""

RUNS_AT_ONCE = 4
PATIENCE = 40.0


def add_tasks(app: Celery) -> None:
    """Register the tasks that only these tests have."""
    options = {"base": FencedTask, "bind": True, "lock_key": "job:<key>", "outage_policy": quick_retry()}
    app.task(name="patient", miss_policy=quick_retry(), lost_policy="raise", **options)(bodies.work)
    app.task(name="enduring", miss_policy=quick_retry(), lost_policy="raise", lock_ttl=LONG_TTL, **options)(
        bodies.work
    )
    # Where an outage were taken for a miss, this one would be told that the work is being done.
    app.task(name="skips", miss_policy="skip", lost_policy="raise", **options)(bodies.work)


def _trusts(task: Any, name: str) -> None:
    """Ask the lease before each step until the gate opens; note when it last said yes, if it says no."""
    gate, asked_at = bodies.gate_of(task.app, name), time.monotonic()
    try:
        while not gate.is_open:
            now = time.monotonic()
            task.lease.check()
            asked_at = now
            time.sleep(0.02)
    finally:
        bodies.ledger_of(task.app).note("trusted", task_id=task.request.id, until=asked_at)


bodies.HOLDS["trusts"] = _trusts


class BadDay:
    """The bench with its two workers, their proxies and a lease server that keeps its data on disk."""

    def __init__(self, bench: Bench, stack: ExitStack) -> None:
        self.bench = bench
        self.server: EmbeddedServer = stack.enter_context(embedded_server(persistent=True))
        bench.leases = self.server
        self.far = stack.enter_context(Proxy(self.server.host, self.server.port))
        self.near = stack.enter_context(Proxy(self.server.host, self.server.port))
        add_tasks(bench.app)
        self.far_worker, self.near_worker = self._launch("far", self.far), self._launch("near", self.near)
        self.far_worker.await_ready()
        self.near_worker.await_ready()

    def _launch(self, name: str, proxy: Proxy) -> Any:
        return self.bench.launch(
            app="bench.bad_day",
            concurrency=RUNS_AT_ONCE,
            options=["-Q", self.queue(name)],
            conf={"fence_url": url_of(proxy)},
        )

    def queue(self, worker: str) -> str:
        """The queue of the worker ``"far"`` or ``"near"``."""
        return f"{self.bench.queue}.{worker}"

    def send(self, worker: str, task: str, key: str, **plan: Any) -> AsyncResult:
        """Publish a run of *task* on *key* for one of the workers."""
        return self.bench.send(task, key, plan, queue=self.queue(worker))

    def hold(self, worker: str, key: str, task: str = "patient", **plan: Any) -> tuple[AsyncResult, Gate]:
        """Have *worker* hold *key* and ask its lease all the while, until the gate is opened."""
        gate = self.bench.gate()
        result = self.send(worker, task, key, trusts=gate.path.name, **plan)
        wait_until(lambda: self.bench.ledger.facts("holding", key=key), what=f"{worker} holds {key}")
        return result, gate

    def forget_everything(self) -> None:
        """Restart the lease server without its data."""
        self.server.kill()
        for left in self.server.directory.glob("appendonly*"):
            shutil.rmtree(left)
        self.server.start()


class Day:
    """
    What becomes of a run in each phase, and of those who wait for its key, while a fault strikes.

    *holder* is the task of the one that holds its lease then.
    """

    def __init__(self, world: BadDay, *, holder: str = "patient") -> None:
        self.world, self.bench = world, world.bench
        self.asks, self.meets = self.bench.key("asks"), self.bench.key("meets")
        self.holds, self.ends = self.bench.key("holds"), self.bench.key("ends")
        self.holder, self._holders_gate = world.hold("far", self.holds, holder, value="held")
        self.finisher, self._finishers_gate = world.hold("far", self.ends, value="finished")
        self._message = unacknowledged(self.bench, self.finisher.id)
        self.logged_before = len(world.far_worker.log)
        self.finished_in_time = False
        """The result of what ended under the fault was there while the fault lasted."""

    def have_one_ask(self) -> None:
        """Send two messages whose lease has to be asked for under the fault; the second will have company."""
        self.asker = self.world.send("far", "skips", self.asks, value="asked")
        self.asker_in_company = self.world.send("far", "patient", self.meets, value="asked")

    def have_one_end(self) -> None:
        """Let a body end, whose lease has to be released under the fault; and let others wait for the held keys."""
        self._finishers_gate.open()
        wait_until(lambda: self.bench.ledger.ends(self.ends), what="the body that is to end has ended")
        self.next_of_ended = self.world.send("near", "patient", self.ends, value="next")
        self.next_of_held = self.world.send("near", "patient", self.holds, value="next")

    def await_finish(self) -> None:
        """Wait for the result of what ended, whose release the fault met."""
        self.finished_in_time = self.finisher.get(timeout=PATIENCE) == "finished"

    def await_refusal(self) -> None:
        """Wait until the message that asked has been sent away: no lease was to be had."""
        wait_until(lambda: self.asker.state == "RETRY", what="put off as the store can't be reached")

    def await_trouble(self) -> None:
        """Wait until a renewal of the held lease has failed."""
        wait_until(lambda: self.logged(f"Renewing 'job:{self.holds}' failed"), what="a renewal failed")

    def await_loss(self) -> None:
        """Wait until the holder has given its lease up."""
        wait_until(lambda: self.lost, what="the holder noticed that its lease is over")

    def await_renewal(self) -> None:
        """Wait until the held lease is renewed once more, so that a heartbeat that stood still would be seen."""
        key = f"job:{self.holds}"
        before = len(self.bench.ledger.facts("lease_renewed", fence_key=key))
        wait_until(
            lambda: len(self.bench.ledger.facts("lease_renewed", fence_key=key)) > before,
            what="the held lease is renewed again",
        )

    def come_to_its_end(self) -> None:
        """After the fault: everybody comes to an end, one who waits for the key that was asked for too."""
        self.next_of_asked = self.world.send("near", "patient", self.meets, value="next")
        if not self.lost:
            self.await_renewal()
        self._holders_gate.open()
        for result in (self.asker, self.asker_in_company, self.holder, self.finisher, *self.waiters):
            self.bench.outcome(result, timeout=PATIENCE)
        self._bring_a_copy()

    @property
    def waiters(self) -> tuple[AsyncResult, ...]:
        """Whoever waited for a key."""
        return self.next_of_asked, self.next_of_held, self.next_of_ended

    @property
    def lost(self) -> bool:
        """Whether the holder has lost its lease."""
        return bool(self.bench.ledger.facts("lease_lost", fence_key=f"job:{self.holds}"))

    @property
    def trusted_until(self) -> float:
        """When the holder's lease last said yes, on the machine's monotonic clock."""
        return self.bench.ledger.facts("trusted", task_id=self.holder.id)[0]["until"]

    def logged(self, text: str) -> bool:
        """Whether the far worker has written *text* since the day began."""
        return text in self.world.far_worker.log[self.logged_before :]

    def _bring_a_copy(self) -> None:
        """Deliver the message that had ended once more, as a broker does, and wait until it is gone."""
        words = f"[{self.finisher.id}]"
        wait_until(lambda: _noted(self.bench, self.ends), what="the end is remembered")
        self.bench.broker_client.lpush(self.world.queue("near"), json.dumps(self._message))
        wait_until(
            lambda: f"A copy of patient{words}" in self.world.near_worker.log, what="the copy ended silently"
        )


def digest_of(question: str) -> bytes:
    """What the request for *question* has in it, to be found by a proxy."""
    return getattr(load_scripts(), question).digest.encode()


def url_of(proxy: Proxy) -> str:
    """The lease server's URL, by way of *proxy*."""
    return f"redis://{proxy.host}:{proxy.port}/0"


def unacknowledged(bench: Bench, task_id: str) -> dict[str, Any]:
    """The message as the Redis broker keeps it while it runs."""
    kept = [json.loads(raw)[0] for raw in bench.broker_client.hvals("unacked")]
    return next(message for message in kept if message["headers"]["id"] == task_id)


def _noted(bench: Bench, key: str) -> bool:
    """Whether both runs on *key* are: of a release that failed the end is written down later than that of the next."""
    client = bench.lease_client
    noted = [client.hget(name, "noted") for name in client.scan_iter(f"*:done:*job:{key}*")]
    return len(noted) > 1 and all(noted)


def note_shutdown(**_: Any) -> None:
    """Note in the ledger that a pool process is about to end."""
    Ledger(json.loads(os.environ[WORLD])["bench_ledger"]).note("process_shutdown")


if WORLD in os.environ:
    # Connected first, so it is called before celery-fence's own receiver.
    worker_process_shutdown.connect(note_shutdown, weak=False)

    from bench.app import app

    add_tasks(app)
