"""
SIGKILL at every boundary of claim, effect and record, on PostgreSQL.

Each message's first run dies exactly there; the copy that the broker delivers then ends
with the result, and there is one effect and one record, whatever had been written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bench.drivers import plain_database
from bench.sql_records import ITEMS, add_tasks
from bench.waiting import wait_until

pytestmark = pytest.mark.needs("postgres")

BOUNDARIES = {
    "pay": ("begun", "claimed", "effect", "completed", "committed", "released", "stored", "over"),
    "pay_in_parts": ("claim committed", "claimed again", "completed", "committed"),
}
CASES = [(task, boundary) for task, boundaries in BOUNDARIES.items() for boundary in boundaries]
AFTER_THE_RELEASE = {"released", "stored", "over"}
"""There the store remembers the end, so that the copy doesn't run the body."""

CONF = {"fence_ttl": 2.0, "task_reject_on_worker_lost": True}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    from celery_fence.fencing.idempotency import record_ddl

    with plain_database("postgresql", tmp_path_factory.mktemp("database")) as made:
        made.run("CREATE TABLE effects (work VARCHAR(80) NOT NULL)", record_ddl("postgresql"))
        yield made


@pytest.fixture(scope="module")
def bench(make_bench: Any, database: Any) -> Iterator[Any]:
    bench = make_bench("redis", bench_database=database.url(), **CONF)
    add_tasks(bench.app)
    bench.worker(app="bench.sql_records", concurrency=4)
    return bench


@pytest.fixture(scope="module")
def sent(bench):
    """One message for each boundary, all sent before the first test looks."""
    found = {}
    for task, boundary in CASES:
        key = bench.key("payment")
        found[task, boundary] = key, bench.send(task, key, {"stops_at": boundary, "victim": "child"})
    return found


def effects(database, key):
    return database.run(f"SELECT count(*) FROM effects WHERE work LIKE '{key}%'")[0][0]


def records(database, key):
    return database.run(
        f"SELECT count(done_at), count(*) FROM fence_records WHERE record_key = 'payment:{key}' AND step = ''"
    )[0]


@pytest.mark.parametrize(("task", "boundary"), CASES)
def test_after_a_kill_there_is_one_effect_and_one_record(bench, database, sent, task, boundary):
    key, result = sent[task, boundary]

    assert result.get(timeout=60) == {"charged": key}
    assert [each["boundary"] for each in bench.ledger.facts("boundary", key=key)] == [boundary]
    assert effects(database, key) == 1
    assert tuple(records(database, key)) == (1, 1)
    runs = len(bench.ledger.starts(key))
    assert runs == 1 if boundary in AFTER_THE_RELEASE else runs > 1


def test_a_crash_after_item_20_of_50_repeats_none_of_the_20(bench, database):
    key = bench.key("batch")
    result = bench.send("send_batch", key, {"stops_at": "item 20", "victim": "child"})

    assert result.get(timeout=60) == ITEMS
    done = database.run(f"SELECT work FROM effects WHERE work LIKE '{key}/%'")
    assert sorted(row[0] for row in done) == sorted(f"{key}/{number}" for number in range(ITEMS))
    assert len(bench.ledger.starts(key)) > 1


def test_another_message_is_answered_from_the_record_when_redis_has_forgotten_its_own(bench, database):
    key = bench.key("payment")
    first = bench.send("pay", key)
    assert first.get(timeout=60) == {"charged": key}
    wait_until(lambda: not list(bench.store.leases()), what="no lease is left")
    bench.lease_client.flushall()

    second = bench.send("pay", key)

    assert second.get(timeout=60) == {"charged": key}
    assert effects(database, key) == 1
    skipped = wait_until(
        lambda: bench.ledger.facts("task_skipped", fence_key=f"job:{key}"), what="it is skipped"
    )
    assert len(skipped) == 1
    assert len(bench.ledger.starts(key)) == 2  # the second found the record in its first statement
