"""The bench itself, with tasks that have no fence: what the other tests rely on."""

from __future__ import annotations

import signal

import pytest
from bench.events import watching
from bench.waiting import wait_until
from bench.world import Bench


@pytest.fixture(scope="module")
def unfenced(make_bench, broker_kind) -> Bench:
    bench = make_bench(broker_kind, bench_fenced=False)
    bench.worker(concurrency=2)
    return bench


def test_without_a_fence_two_runs_of_a_key_overlap_and_the_ledger_shows_it(unfenced):
    key, gate = unfenced.key(), unfenced.gate()
    results = [unfenced.send("plain", key, {"gate": gate.path.name, "value": n}) for n in range(2)]
    wait_until(lambda: len(unfenced.ledger.starts(key)) == 2)
    gate.open()

    assert sorted(result.get(timeout=20) for result in results) == [0, 1]
    assert len(unfenced.ledger.overlaps(key)) == 1


def test_the_monitor_sees_a_task_to_its_end(unfenced):
    with watching(unfenced.app) as monitor:
        result = unfenced.send("plain", unfenced.key(), {"value": 7})
        monitor.wait_for_state(result.id, "SUCCESS")

    assert result.get(timeout=20) == 7


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_a_worker_of_every_pool_works_and_can_be_killed(make_bench, pool):
    bench = make_bench(bench_fenced=False)
    worker = bench.worker(pool=pool)

    assert bench.send("plain", bench.key(), {"value": pool}).get(timeout=20) == pool
    worker.kill(signal.SIGKILL)
    assert worker.exit_code == -signal.SIGKILL
