"""The heartbeat under what stops everything else: loops and C code in greenlets, and thousands of leases."""

from __future__ import annotations

import uuid

import pytest
import redis
from bench.pools import add_tasks
from bench.store_calls import counted
from bench.waiting import wait_until
from bench.world import Bench

from celery_fence.locking import duty
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim
from celery_fence.locking.trust import margin
from celery_fence.stores import from_url
from celery_fence.testing.servers import embedded_server

TTL = 1.2
MANY = 5000


@pytest.fixture(scope="module", params=["gevent", "eventlet"])
def bench(make_bench, request) -> Bench:
    bench = make_bench(fence_ttl=TTL)
    add_tasks(bench.app)
    bench.worker(pool=request.param, concurrency=4, app="bench.pools")
    return bench


@pytest.mark.parametrize("kind", ["compute", "blocks"])
def test_a_greenlet_that_blocks_its_hub_keeps_its_lease(bench, kind):
    """`blocks` is C code that gives up the GIL, as a database driver in C does; no greenlet runs meanwhile."""
    key = bench.key()
    result = bench.send("retry", key, {kind: 3 * TTL, "value": "done"})
    wait_until(lambda: bench.ledger.facts("holding", key=key))
    granted = bench.holder(key)
    seen = []

    def watch():
        seen.append(bench.holder(key))
        return bench.ledger.ends(key)

    wait_until(watch, what="the body ends")
    while_held = [holder for holder in seen if holder is not None]

    assert result.get(timeout=20) == "done"
    assert {(holder.owner, holder.token) for holder in while_held} == {(granted.owner, granted.token)}
    # Renewed before trust would end; how early depends on who else has the processor.
    assert max(holder.beat_age for holder in while_held) < TTL - margin(TTL)
    assert bench.ledger.facts("lease_lost", fence_key=f"job:{key}") == []


def test_a_loss_that_is_told_while_greenlets_write_log_lines_hangs_nothing(bench):
    """
    C code held the GIL beyond the TTL: heartbeat's thread and body log at the same moment.

    With eventlet a thread and a greenlet that both wait for logging's lock hang for ever.
    """
    for _ in range(6):
        key = bench.key()
        result = bench.send("lost_raise", key, {"grips": 1.5 * TTL})
        assert bench.outcome(result, timeout=20) in ("SUCCESS", "FAILURE")

    assert bench.send("retry", bench.key(), {"value": "still here"}).get(timeout=20) == "still here"


def test_five_thousand_leases_are_kept_by_three_threads_and_one_connection(monkeypatch):
    start = duty.start_thread
    with embedded_server() as server:
        store = from_url(server.url)
        renewals = store.for_heartbeat()
        started, lost = [], []
        monkeypatch.setattr(duty, "start_thread", lambda function: (started.append(1), start(function)))
        heartbeat = Heartbeat()
        locker = Locker(store, renewals, lambda event: None, heartbeat=heartbeat)
        leases = [
            locker.acquire(
                Claim(f"job:{number}", uuid.uuid4().hex, 9.0),
                source=None,
                terms=Terms(),
                into=lambda lease: None,
                on_lost=lost.append,
            )
            for number in range(MANY)
        ]
        trusted = {lease.key: lease.trusted_until for lease in leases}
        with redis.Redis.from_url(server.url, decode_responses=True) as onlooker, counted(onlooker) as calls:
            wait_until(
                lambda: all(lease.trusted_until > trusted[lease.key] for lease in leases),
                what="every lease has been renewed",
            )
            clients = [client for client in onlooker.client_list() if client["name"] == "celery-fence"]

        assert lost == []
        assert len(started) <= 3  # it beats, it asks the store, it tells
        assert heartbeat.watching == MANY
        assert calls.scripts <= 3 * MANY / 100
        assert len(clients) == 2  # the tasks' and the heartbeat's
        for lease in leases:
            heartbeat.forget(lease)
        store.close()
        renewals.close()
