"""A skip is final with every result backend: its waiter is told, and a chord over it completes."""

from __future__ import annotations

import pytest
from bench.world import Bench
from celery import chord

from celery_fence import is_skipped

BACKENDS = {"a file": "file://{directory}/results", "a database": "db+sqlite:///{directory}/results.sqlite"}


@pytest.fixture(scope="module", params=BACKENDS)
def bench(make_bench, request, tmp_path_factory) -> Bench:
    directory = tmp_path_factory.mktemp("backend")
    (directory / "results").mkdir()
    bench = make_bench(fence_ttl=30.0, result_backend=BACKENDS[request.param].format(directory=directory))
    bench.worker(concurrency=2)
    return bench


def test_a_skipped_message_can_be_waited_for(bench):
    key = bench.key()
    bench.occupy(key)

    assert is_skipped(bench.send("skip", key).get(timeout=20))


def test_a_chord_with_a_skipped_member_completes(bench):
    held, body = bench.key(), bench.key("body")
    bench.occupy(held)
    tasks = bench.app.tasks
    members = [tasks["skip"].si(held), tasks["retry"].si(bench.key(), {"value": 2})]
    values = chord(members)(tasks["join"].s(key=body)).get(timeout=30)

    assert (is_skipped(values[0]), values[1]) == (True, 2)
    assert len(bench.ledger.facts("join", key=body)) == 1


def test_a_message_on_rpc_results_can_be_waited_for_too(make_bench):
    bench = make_bench("classic", fence_ttl=30.0, result_backend="rpc://")
    bench.worker(concurrency=1)
    key = bench.key()
    bench.occupy(key)

    assert is_skipped(bench.send("skip", key).get(timeout=20))
    assert bench.send("retry", bench.key(), {"value": 1}).get(timeout=20) == 1
