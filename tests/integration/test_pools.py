"""Every pool: the lease is taken, kept beyond its TTL, seen from the body, and given back."""

from __future__ import annotations

import time

import pytest
from bench.waiting import wait_until
from bench.world import Bench

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
TTL = 1.2
# Renewals are due after a third of the TTL, so these carry a lease through three times its TTL.
LONG = 8


@pytest.fixture(scope="module", params=POOLS)
def bench(make_bench, request) -> Bench:
    bench = make_bench(fence_ttl=TTL)
    bench.pool = request.param
    bench.worker(pool=request.param, concurrency=1 if request.param == "solo" else 4)
    return bench


def is_free_soon(bench, key) -> bool:
    """Well within the TTL, so not by expiry."""
    return wait_until(lambda: bench.holder(key) is None, timeout=TTL / 2, what=f"{key} released")


def renewals(bench, key) -> int:
    return len(bench.ledger.facts("lease_renewed", fence_key=f"job:{key}"))


def test_the_body_sees_its_lease_and_its_token(bench):
    key = bench.key()
    seen = bench.app.tasks["look"].delay(key).get(timeout=20)

    assert seen["injected"] == seen["token"] == seen["helper"]["token"] > 0
    assert seen["key"] == f"job:{key}"
    assert (seen["same_below"], seen["verified"], seen["helper"]["checked"], seen["lost"]) == (
        True,
        True,
        True,
        False,
    )
    assert 0 < seen["trusted_for"] < TTL


def test_a_body_three_times_as_long_as_the_ttl_keeps_its_key(bench):
    key = bench.key()
    result, gate = bench.hold(key, value="done")
    granted = bench.holder(key)
    wait_until(lambda: renewals(bench, key) >= LONG, timeout=20, what="renewed beyond three TTLs")
    kept = bench.holder(key)
    gate.open()

    assert (kept.token, kept.owner) == (granted.token, granted.owner)
    assert result.get(timeout=20) == "done"
    assert len(bench.ledger.starts(key)) == 1
    assert is_free_soon(bench, key)


def test_a_cpu_loop_does_not_starve_the_heartbeat(bench):
    key, gate = bench.key(), bench.gate()
    result = bench.send("retry", key, {"spin": gate.path.name, "value": "done"})
    # Under gevent and eventlet the signals come after the loop, so the store is asked.
    beats = set()

    def has_beaten():
        holder = bench.holder(key)
        beats.add(None if holder is None else round(time.time() - holder.beat_age, 1))
        return len(beats) > LONG // 2

    wait_until(has_beaten, timeout=20, what="renewed beyond the TTL")
    holder = bench.holder(key)
    gate.open()

    assert result.get(timeout=20) == "done"
    assert holder is not None
    assert bench.ledger.facts("lease_lost", fence_key=f"job:{key}") == []


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ("return", "SUCCESS"),
        ("raise", "FAILURE"),
        ("soft_limit", "FAILURE"),
        ("reject", "FAILURE"),
        ("unserialisable", "FAILURE"),
    ],
)
def test_every_final_end_of_the_body_frees_the_key(bench, ending, outcome):
    key = bench.key()
    result = bench.send("retry", key, {"then": ending})

    assert bench.outcome(result) == outcome
    assert is_free_soon(bench, key)


@pytest.mark.parametrize("ending", ["ignore", "retry"])
def test_an_end_without_a_result_frees_the_key_too(bench, ending):
    key = bench.key()
    bench.send("retry", key, {"then": ending, "countdown": 5})
    wait_until(lambda: bench.ledger.ends(key))

    assert is_free_soon(bench, key)


def test_a_retried_run_has_a_higher_token_and_the_message_has_none(bench):
    key = bench.key()
    bench.send("retry", key, {"then": "retry", "value": "second"}).get(timeout=20)
    first, second = bench.ledger.starts(key)

    assert second["token"] > first["token"]
    assert (first["retries"], second["retries"]) == (0, 1)
    assert first["kwargs"] == second["kwargs"] == []


def test_keys_that_are_held_at_once_have_leases_of_their_own(bench):
    together = 1 if bench.pool == "solo" else 3
    keys = [bench.key() for _ in range(together)]
    held = [bench.hold(key, value=key) for key in keys]
    holders = [bench.holder(key) for key in keys]
    for _, gate in held:
        gate.open()

    assert [result.get(timeout=20) for result, _ in held] == keys
    assert len({holder.owner for holder in holders}) == together


def test_many_messages_on_few_keys_never_overlap(bench):
    keys = [bench.key() for _ in range(2)]
    results = [bench.send("retry", keys[n // 5], {"sleep": 0.02, "value": n}) for n in range(10)]

    assert [result.get(timeout=60) for result in results] == list(range(10))
    assert [bench.ledger.overlaps(key) for key in keys] == [[]] * 2
    assert [len(set(bench.ledger.tokens(key))) for key in keys] == [5] * 2


def test_a_careful_body_hears_of_a_force_release(bench):
    key = bench.key()
    result = bench.send("lost_raise", key, {"until_lost": 20})
    wait_until(lambda: bench.ledger.starts(key))
    bench.vacate(key)

    assert bench.outcome(result) == "FAILURE"
    assert [fact["outcome"] for fact in bench.ledger.ends(key)] == ["LeaseLost"]
    assert bench.ledger.facts("lease_lost", fence_key=f"job:{key}")


def test_max_hold_ends_a_hung_run_in_every_pool(bench):
    key = bench.key()
    result = bench.send("shortly_held", key, {"until_lost": 20})

    assert bench.outcome(result) == "FAILURE"
    assert type(result.result).__name__ == "LeaseLost"
    wait_until(lambda: bench.holder(key) is None, timeout=2 * TTL, what="the hung holder's key is free")


def test_a_body_without_a_token_parameter_is_given_none(bench):
    key = bench.key()

    assert bench.app.tasks["tokenless"].delay(key).get(timeout=20) == key
    assert is_free_soon(bench, key)


def test_a_body_that_does_not_run_leaves_the_holder_alone(bench):
    key = bench.key()
    token = bench.occupy(key, ttl=20)
    bench.send("skip", key).get(timeout=20)

    assert bench.holder(key).token == token
    bench.vacate(key)
