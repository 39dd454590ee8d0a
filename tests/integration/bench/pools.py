"""
The bench's app with bodies that only tests of pools need, for `Worker(app="bench.pools")`.

Ways to hold a key beside those of `bodies`: ``blpop`` (a Redis client that waits), ``compute``
(Python that never yields), ``blocks`` (C code that gives the GIL up and blocks its thread, hub and
all), ``grips`` (C code that keeps the GIL), each for so many seconds; ``stubborn`` swallows
everything that is raised in it until a gate opens; ``inner`` holds a second key inside the run.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import redis
from celery import Celery

from bench import bodies
from bench.app import WORLD
from bench.fenced import quick_retry
from celery_fence import FencedTask, hold


def add_tasks(app: Celery) -> None:
    """Register the tasks that only these tests have."""
    options = {"base": FencedTask, "bind": True, "lock_key": "job:<key>", "miss_policy": quick_retry()}
    app.task(name="limited", time_limit=1, **options)(bodies.work)
    app.task(name="held", lock_max_hold=1.5, lock_ttl=1.2, lost_policy="raise", **options)(bodies.work)


def _blpop(task: Any, seconds: float) -> None:
    with redis.Redis.from_url(task.app.conf.broker_url) as client:
        client.blpop("nobody sends here", timeout=seconds)


def _compute(task: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _blocks(task: Any, seconds: float) -> None:
    ctypes.CDLL(None).usleep(int(seconds * 1_000_000))


def _grips(task: Any, seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def _stubborn(task: Any, name: str) -> None:
    gate = bodies.gate_of(task.app, name)
    while not gate.is_open:
        try:
            gate.wait()
        except BaseException as refused:  # noqa: BLE001 - that is what it is for
            bodies.ledger_of(task.app).note("refused", what_was=type(refused).__name__)


def _inner(task: Any, plan: dict[str, Any]) -> None:
    with hold("job:<key>", {"key": plan["key"]}):
        bodies.ledger_of(task.app).note("inner", key=plan["key"])
        bodies._hold(task, plan["key"], plan)


def _asks(task: Any, _: Any) -> None:
    """What a guarded step does first."""
    task.lease.check()


bodies.HOLDS.update(
    blpop=_blpop, compute=_compute, blocks=_blocks, grips=_grips, stubborn=_stubborn, inner=_inner, asks=_asks
)
bodies.ENDINGS["vanish_well"] = lambda task, plan: os._exit(0)
if WORLD in os.environ:
    from bench.app import app

    add_tasks(app)
