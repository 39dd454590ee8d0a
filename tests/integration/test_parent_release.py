"""
A pool child is killed: its keys are free again within a second of its death, and never before it.

The TTL is longer than any test waits, so what is free here was released. A sampler looks at the key
and at the process in turn; the process counts as dead from the moment it is a zombie.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager

import psutil
import pytest
from bench.pools import add_tasks
from bench.waiting import wait_until
from bench.world import Bench

TTL = 30.0
WITHIN = 1.0


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    bench.worker(concurrency=3, app="bench.pools")
    return bench


class Sampler:
    """When a process died and when a key was seen free for the first time, on one clock."""

    def __init__(self, bench: Bench, pid: int, keys: list[str]) -> None:
        self.bench, self.pid, self.keys = bench, pid, keys
        self.died_at: float | None = None
        self.freed_at: dict[str, float] = {}
        self.early: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @contextmanager
    def sampling(self):
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join(10)

    @property
    def done(self) -> bool:
        return self.died_at is not None and len(self.freed_at) == len(self.keys)

    def delay(self, key: str) -> float:
        return self.freed_at[key] - self.died_at

    def _sample(self) -> None:
        store = self.bench.store
        while not self._stop.is_set() and not self.done:
            free = [
                key for key in self.keys if key not in self.freed_at and store.holder(f"job:{key}") is None
            ]
            # Looked at after the keys: what was free before a death is free too early.
            alive = is_alive(self.pid)
            if not alive and self.died_at is None:
                self.died_at = time.monotonic()
            for key in free:
                self.freed_at[key] = time.monotonic()
                if alive:
                    self.early.append(key)
            self._stop.wait(0.005)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def child_that_holds(bench, key) -> int:
    wait_until(lambda: bench.ledger.facts("holding", key=key), what=f"{key} is held")
    return bench.ledger.starts(key)[0]["pid"]


def watch_death(bench, pid, *keys, deed=lambda: None) -> Sampler:
    """Do *deed* while the keys and the process are sampled; returns when all are free and it is dead."""
    sampler = Sampler(bench, pid, list(keys))
    with sampler.sampling():
        deed()
        wait_until(lambda: sampler.done, timeout=20, what=f"{keys} are free")
    assert sampler.early == []
    return sampler


def test_sigkill_of_a_child_frees_its_key(bench):
    key = bench.key()
    bench.hold(key)
    pid = child_that_holds(bench, key)
    sampler = watch_death(bench, pid, key, deed=lambda: os.kill(pid, signal.SIGKILL))

    assert sampler.delay(key) < WITHIN


def test_the_keys_of_hold_blocks_inside_its_run_are_freed_too(bench):
    key, inner = bench.key(), bench.key()
    bench.send("retry", key, {"inner": {"key": inner, "gate": bench.gate().path.name}})
    wait_until(lambda: bench.ledger.facts("inner", key=inner), what="the block is entered")
    pid = bench.ledger.starts(key)[0]["pid"]
    sampler = watch_death(bench, pid, key, inner, deed=lambda: os.kill(pid, signal.SIGKILL))

    assert max(sampler.delay(key), sampler.delay(inner)) < WITHIN


def test_a_hard_time_limit_on_a_body_that_swallows_its_system_exit(bench):
    key = bench.key()
    bench.send("limited", key, {"stubborn": bench.gate().path.name})
    pid = child_that_holds(bench, key)
    sampler = watch_death(bench, pid, key)

    assert bench.ledger.facts("refused", pid=pid)
    assert sampler.delay(key) < WITHIN


def test_revoke_with_sigkill(bench):
    key = bench.key()
    result, _ = bench.hold(key)
    pid = child_that_holds(bench, key)
    deed = lambda: bench.app.control.revoke(result.id, terminate=True, signal="SIGKILL")  # noqa: E731
    sampler = watch_death(bench, pid, key, deed=deed)

    assert bench.outcome(result) == "REVOKED"
    assert sampler.delay(key) < WITHIN


@pytest.mark.parametrize("ending", ["vanish", "vanish_well"])
def test_os_exit_in_the_body_whatever_its_code(bench, ending):
    key, gate = bench.key(), bench.gate()
    bench.send("retry", key, {"gate": gate.path.name, "then": ending})
    pid = child_that_holds(bench, key)
    sampler = watch_death(bench, pid, key, deed=gate.open)

    assert sampler.delay(key) < WITHIN


def test_the_next_message_runs_with_a_higher_token(bench):
    key = bench.key()
    bench.hold(key)
    pid = child_that_holds(bench, key)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()

    assert bench.send("retry", key, {"value": "next"}).get(timeout=TTL / 2) == "next"
    assert time.monotonic() - began < TTL / 2
    first, second = bench.ledger.tokens(key)
    assert second > first


def test_the_keys_of_the_other_children_stay_held(bench):
    mine, others = bench.key(), bench.key()
    bench.hold(mine)
    other, gate = bench.hold(others, value="finished")
    granted = bench.holder(others)
    pid = child_that_holds(bench, mine)
    watch_death(bench, pid, mine, deed=lambda: os.kill(pid, signal.SIGKILL))

    assert bench.holder(others).token == granted.token
    gate.open()
    assert other.get(timeout=20) == "finished"


def test_a_key_that_belongs_to_somebody_else_by_then_stays_theirs(bench):
    key = bench.key()
    bench.hold(key, task="lost_flag")
    pid = child_that_holds(bench, key)
    bench.vacate(key)
    token = bench.occupy(key)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid), what="the worker has buried the child")
    bench.send("retry", bench.key(), {"value": "the worker goes on"}).get(timeout=20)

    assert bench.holder(key).token == token
    bench.vacate(key)


def test_a_child_that_ended_normally_costs_no_call(make_bench):
    """Recycled after each task: nothing is asked of the store for its death."""
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    bench.worker(concurrency=1, app="bench.pools", options=["--max-tasks-per-child", "1"])
    keys = [bench.key() for _ in range(4)]
    for key in keys:
        bench.send("retry", key, {"value": key}).get(timeout=30)
    pids = {bench.ledger.starts(key)[0]["pid"] for key in keys}
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), what="the children are recycled")

    assert len(pids) == 4
    assert "died while it ran" not in bench.workers[0].log


def test_while_the_store_is_away_the_release_is_tried_until_it_is_back(make_bench):
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    worker = bench.worker(concurrency=1, app="bench.pools")
    key = bench.key()
    bench.hold(key)
    pid = child_that_holds(bench, key)
    store = psutil.Process(bench.leases.pid)
    store.suspend()
    try:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(pid), what="the child is dead and buried")
        wait_until(lambda: len(worker.child_pids()) == 1 and pid not in worker.child_pids())
    finally:
        store.resume()

    wait_until(lambda: bench.holder(key) is None, timeout=10, what="released once the store is back")


def test_a_child_killed_during_a_warm_shutdown_leaves_nothing_when_the_worker_has_ended(make_bench):
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    worker = bench.worker(concurrency=1, app="bench.pools")
    key = bench.key()
    bench.hold(key)
    pid = child_that_holds(bench, key)
    worker.kill(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log, what="the worker is ending")
    os.kill(pid, signal.SIGKILL)
    worker.await_exit(timeout=20)

    assert bench.holder(key) is None


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_whole_worker_killed_its_key_is_free_after_the_ttl_and_no_more_than_a_second_later(
    make_bench, pool
):
    ttl = 3.0
    bench = make_bench(fence_ttl=ttl)
    add_tasks(bench.app)
    worker = bench.worker(pool=pool, concurrency=1, app="bench.pools")
    key = bench.key()
    bench.hold(key)
    left = bench.holder(key).ttl_left
    killed_at = time.monotonic()
    worker.kill(signal.SIGKILL)
    wait_until(lambda: bench.holder(key) is None, timeout=2 * ttl, what="free by expiry")
    free_after = time.monotonic() - killed_at

    assert left > ttl / 2
    assert ttl / 2 < free_after < ttl + WITHIN


@pytest.mark.parametrize("options", [["--autoscale", "3,1"], ["-O", "fair"]])
def test_with_other_ways_to_run_the_pool_too(make_bench, options):
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    bench.worker(concurrency=2, app="bench.pools", options=options)
    key = bench.key()
    bench.hold(key)
    pid = child_that_holds(bench, key)

    assert watch_death(bench, pid, key, deed=lambda: os.kill(pid, signal.SIGKILL)).delay(key) < WITHIN


def test_after_a_broker_connection_was_lost_and_the_event_loop_set_up_again(make_bench):
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    worker = bench.worker(concurrency=1, app="bench.pools")
    bench.broker_client.client_kill_filter(_type="normal", skipme=True)
    bench.broker_client.client_kill_filter(_type="pubsub", skipme=True)
    wait_until(lambda: "Connection to broker lost" in worker.log or "connection" in worker.log.lower())
    key = bench.key()
    bench.hold(key)
    pid = child_that_holds(bench, key)

    assert watch_death(bench, pid, key, deed=lambda: os.kill(pid, signal.SIGKILL)).delay(key) < WITHIN
