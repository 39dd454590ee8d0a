"""A worker that can't be right doesn't start: it ends non-zero and its last line says what to do."""

from __future__ import annotations

import pytest
from bench.world import Bench


@pytest.fixture(scope="module")
def bench(make_bench) -> Bench:
    return make_bench()


WRONG = {
    "an unknown setting": ({"fence_tll": 5}, ["fence_tll", "fence_ttl"]),
    "a setting of another library": ({"fence_lock_timeout": 5}, ["fence_lock_timeout"]),
    "a TTL that is text": ({"fence_ttl": "60"}, ["fence_ttl", "'60'"]),
    "a TTL of nothing": ({"fence_ttl": 0}, ["fence_ttl", "0"]),
    "a negative TTL": ({"fence_ttl": -1}, ["fence_ttl", "-1"]),
    "an unknown policy": ({"fence_miss_policy": "retyr"}, ["retyr", "retry"]),
    "a policy of a later version": ({"fence_miss_policy": "park"}, ["park", "yet"]),
    "a mode of a later version": ({"fence_mode": "shadow"}, ["fence_mode", "yet"]),
    "an unsupported store": ({"fence_url": "mongodb://localhost/1"}, ["mongodb", "redis"]),
    "a store of a later version": ({"fence_url": "redis+cluster://localhost/1"}, ["redis+cluster"]),
    "an unreachable store": ({"fence_url": "redis://127.0.0.1:1/0"}, ["127.0.0.1:1"]),
    "a store of one process under prefork": ({"fence_url": "memory://"}, ["memory://"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_worker_refuses_to_start_with(bench, what):
    conf, words = WRONG[what]
    worker = bench.launch(conf=conf, concurrency=2)
    code = worker.await_exit(timeout=60)
    last_line = worker.log.strip().splitlines()[-1]

    assert code != 0
    assert " ready." not in worker.log
    assert "Traceback" not in worker.log
    for word in words:
        assert word in last_line


def test_a_worker_tells_all_that_is_wrong_in_its_last_lines(bench):
    worker = bench.launch(conf={"fence_ttl": "60", "fence_lost_policy": "retyr"}, concurrency=2)
    worker.await_exit(timeout=60)

    first, second = worker.log.strip().splitlines()[-2:]
    assert "Celery setting 'fence_ttl' is '60'" in first
    assert "Celery setting 'fence_lost_policy' is 'retyr'" in second


def test_a_store_of_one_process_is_fine_for_a_threads_pool(bench):
    worker = bench.worker(conf={"fence_url": "memory://"}, pool="threads", concurrency=2)
    key = bench.key()

    assert bench.send("retry", key, {"value": "ran"}).get(timeout=20) == "ran"
    worker.stop()


def test_a_password_of_the_store_is_in_no_message(bench):
    worker = bench.launch(conf={"fence_url": "redis://:hunter2@127.0.0.1:1/0"}, concurrency=1)
    worker.await_exit(timeout=60)

    assert "127.0.0.1:1" in worker.log
    assert "hunter2" not in worker.log


@pytest.mark.parametrize(("right", "command"), [("@scripting", "evalsha"), ("@write", "hset")])
def test_a_worker_refuses_to_start_where_the_user_of_its_store_may_not(bench, right, command):
    bench.lease_client.execute_command(
        "ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "+@all", f"-{right}"
    )
    worker = bench.launch(
        conf={"fence_url": f"redis://plain:pw@127.0.0.1:{bench.leases.port}/0"}, concurrency=1
    )
    code = worker.await_exit(timeout=60)
    last_line = worker.log.strip().splitlines()[-1]

    assert code != 0
    assert "this worker would run nothing" in last_line
    assert f"may not run '{command}'" in last_line
    assert "grant +eval" in last_line
    assert "Traceback" not in worker.log


def test_a_worker_whose_tasks_may_run_unfenced_starts_where_its_store_refuses_and_says_so(bench):
    bench.lease_client.execute_command(
        "ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "+@all", "-@write"
    )
    conf = {
        "fence_url": f"redis://plain:pw@127.0.0.1:{bench.leases.port}/0",
        "fence_outage_policy": "run",
    }
    worker = bench.worker(conf=conf, concurrency=1)

    assert "tasks run without a lease until it can" in worker.log
    assert "may not run 'hset'" in worker.log
    worker.stop()


@pytest.mark.parametrize(("policy", "warned"), [("allkeys-lru", True), ("noeviction", False)])
def test_a_worker_warns_at_its_start_of_a_store_that_evicts_and_starts(bench, policy, warned):
    bench.lease_client.config_set("maxmemory-policy", policy)
    worker = bench.worker(concurrency=1)
    bench.lease_client.config_set("maxmemory-policy", "noeviction")

    assert (f"maxmemory-policy {policy}" in worker.log) == warned
    assert bench.lease_client.keys() == []
    worker.stop()


def test_a_worker_whose_user_may_not_ask_about_eviction_starts_without_a_word(bench):
    rights = ("~*", "+@all", "-info", "-config", "-@admin", "-@dangerous")
    bench.lease_client.execute_command("ACL", "SETUSER", "plain", "reset", "on", ">pw", *rights)
    bench.lease_client.config_set("maxmemory-policy", "allkeys-lru")
    conf = {"fence_url": f"redis://plain:pw@127.0.0.1:{bench.leases.port}/0"}
    worker = bench.worker(conf=conf, concurrency=1)
    bench.lease_client.config_set("maxmemory-policy", "noeviction")

    assert not any(word in worker.log for word in ("maxmemory", "lease store", "permission"))
    worker.stop()
