"""The world of one round: servers, proxies, workers, a ledger; and its end, whatever happens."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis
from bench.worker import Worker
from celery import Celery

from celery_fence.testing.proxy import Proxy
from celery_fence.testing.servers import EmbeddedServer, embedded_server
from rig import faketime
from rig.app import CONTROL, WORLD, build_app
from rig.history import History
from rig.holders import Holders
from rig.ledger import Ledger
from rig.plan import Plan, WorkerPlan

DATABASE = "CHAOS_DATABASE"
"""An SQLAlchemy URL for the ledger; without it a SQLite file in the run directory."""

QUEUE = "chaos"
DEAD_LETTERS = "chaos.dead_letters"
RESULTS, SKEWED = 1, 2
"""Database numbers on the broker's server: results, and the broker of a worker with a wrong clock."""

HERE = Path(__file__).resolve().parents[1]
STOP_GRACE = 10.0
"""Seconds a worker has for its last tasks before it is killed."""

PATHS = (HERE, HERE.parent / "integration", HERE.parents[1])


@dataclass(slots=True)
class Post:
    """A place in the world for one worker, which is filled again when its worker is killed."""

    plan: WorkerPlan
    proxy: Proxy
    app: Celery
    env: dict[str, str]
    worker: Worker
    lives: int = 0

    @property
    def ready(self) -> bool:
        """Whether its worker has said so."""
        return self.worker.alive and " ready." in self.worker.log


class World:
    """Everything of one round; use it as a context manager."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.history = History(directory, "driver")
        self.holders = Holders(directory)
        self.posts: list[Post] = []
        self.frozen: set[int] = set()
        self.offset = directory / "server-offset"
        self.ledger_url = os.environ.get(DATABASE) or f"sqlite:///{directory / 'ledger.sqlite'}"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.ledger = Ledger(self.ledger_url)
            self.ledger.create(self.plan.keys)
            stack.callback(self.ledger.keep_open().close)
            self.broker: EmbeddedServer = stack.enter_context(embedded_server())
            self.leases: EmbeddedServer = stack.enter_context(self._lease_server())
            self.client = _client(stack, self.leases.url)
            self.results = _client(stack, self.broker.url_of(RESULTS))
            self.brokers = [_client(stack, self.broker.url_of(number)) for number in (0, SKEWED)]
            stack.callback(self._stop_workers)
            for each in self.plan.workers:
                self.posts.append(self._post(stack, each))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is not None:  # a round that was broken off owes nobody a polite end
            for post in self.posts:
                if post.worker.alive:
                    post.worker.kill()
        self._stack.close()

    def launch(self) -> None:
        """Start every worker, without waiting."""
        for post in self.posts:
            self._fill(post)

    def revive(self) -> None:
        """Put a new worker in the place of each that is gone."""
        for post in self.posts:
            if not post.worker.alive:
                self._fill(post)

    @property
    def all_ready(self) -> bool:
        """Whether every worker consumes messages."""
        return all(post.ready for post in self.posts)

    def stop_workers(self) -> None:
        """End the workers politely, all at the same time."""
        self._stop_workers()

    def _lease_server(self) -> Any:
        env: Mapping[str, str] = {}
        if self.plan.steps_server_clock:
            self.offset.write_text("+0")
            env = faketime.steered(self.offset)
        return embedded_server(
            persistent="F3" in self.plan.faults, options={"enable-debug-command": "yes"}, env=env
        )

    def _post(self, stack: ExitStack, plan: WorkerPlan) -> Post:
        proxy = stack.enter_context(Proxy(self.leases.host, self.leases.port))
        conf = self._conf(plan)
        app = build_app({**conf, "fence_url": self.leases.url})
        stack.callback(app.close)
        chaos = {
            "directory": str(self.directory),
            "ledger": self.ledger_url,
            "worker": plan.name,
            "pool": plan.pool,
        }
        fence_url = f"redis://{proxy.host}:{proxy.port}/0"
        env = {
            WORLD: json.dumps({"conf": {**conf, "fence_url": fence_url}, "chaos": chaos}),
            "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
        }
        if plan.skew:
            env |= faketime.skewed(plan.skew)
            env["PYTHONPATH"] = os.pathsep.join(map(str, (faketime.MENDED_SLEEP, *PATHS)))
        if self.plan.control:
            env[CONTROL] = self.plan.control
        return Post(plan, proxy, app, env, self._worker(plan, env, 0))

    def _conf(self, plan: WorkerPlan) -> dict[str, Any]:
        return {
            "broker_url": self.broker.url_of(SKEWED if plan.skew else 0),
            "result_backend": self.broker.url_of(RESULTS),
            "task_default_queue": QUEUE,
            "fence_dead_letter_queue": DEAD_LETTERS,
            "fence_ttl": self.plan.ttl,
            "fence_counter_retention": self.plan.counter_retention,
            "fence_done_retention": self.plan.done_retention,
            "broker_transport_options": {
                "visibility_timeout": self.plan.visibility,
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
                # A worker that is killed while it restores closes that off for this long; Kombu's default is 300 s.
                "unacked_mutex_expire": 1,
            },
            "task_acks_late": True,
            "task_reject_on_worker_lost": True,
            "worker_lost_wait": 0.3,
            "worker_prefetch_multiplier": 1,
            "broker_connection_retry_on_startup": True,
        }

    def _worker(self, plan: WorkerPlan, env: dict[str, str], life: int) -> Worker:
        log = self.directory / f"{plan.name}-{life}.log"
        return Worker(
            plan.name, log, app="rig.app", pool=plan.pool, concurrency=plan.concurrency, events=False, env=env
        )

    def _fill(self, post: Post) -> None:
        post.lives += 1
        post.worker = self._worker(post.plan, post.env, post.lives).launch()
        self.history.note(
            "worker",
            name=post.plan.name,
            pool=post.plan.pool,
            target_pid=post.worker.pid,
            skew=post.plan.skew,
            broker=post.app.conf.broker_url,
        )

    def _stop_workers(self) -> None:
        for post in self.posts:
            if post.worker.alive:
                post.worker.kill(signal.SIGTERM)
        for post in self.posts:
            post.worker.stop(STOP_GRACE)


def _client(stack: ExitStack, url: str) -> redis.Redis:
    client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=5.0)
    stack.callback(client.close)
    return client
