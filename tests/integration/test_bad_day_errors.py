"""
The lease server answers with errors: what holder, waiter and result see.

Each error meets, once, a run that asks for its lease, one that holds it and one that releases
it (`bench.bad_day`); the tests look at one phase each. Those that last end the trust of the holder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from bench.bad_day import PATIENCE, RUNS_AT_ONCE, BadDay, Day
from bench.refusals import REFUSALS, administrator, load
from bench.waiting import wait_until

from celery_fence import LeaseLost

TTL = 3.5


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of the server, and what is to be seen of it."""

    error: str
    advice: str
    lasts: bool = False
    """It outlasts the trust of the holder."""
    spares_holders: bool = False
    """Whoever has a lease may keep it and give it back."""


FAULTS = {
    "READONLY": Fault("READONLY", "point fence_url at the primary"),
    "READONLY, lasting": Fault("READONLY", "point fence_url at the primary", lasts=True),
    "MASTERDOWN": Fault("MASTERDOWN", "a replica whose primary is down"),
    "NOREPLICAS": Fault("NOREPLICAS", "see min-replicas-to-write"),
    "MISCONF": Fault("MISCONF", "can't save to its disk"),
    "OOM": Fault("OOM", "out of memory; raise maxmemory", spares_holders=True),
    "BUSY": Fault("BUSY", "see SCRIPT KILL"),
    "LOADING": Fault("LOADING", "still loading its data"),
    "NOPERM, scripts": Fault("NOPERM, scripts", "may not run 'evalsha'; grant +eval"),
    "NOPERM, writing": Fault("NOPERM, writing", "grant +eval"),
    "max clients": Fault("max clients", "raise maxclients"),
}


@pytest.fixture(scope="module")
def world(make_bench) -> Iterator[BadDay]:
    with ExitStack() as stack:
        yield BadDay(make_bench(fence_ttl=TTL), stack)


@pytest.fixture(scope="module")
def played(world) -> Iterator[Callable[[str], Day]]:
    """Let a fault strike, once; the tests of it share what was seen."""
    with administrator(world.server) as boss:
        load(boss)

        @functools.cache
        def play(name: str) -> Day:
            day = Day(world, holder="enduring" if FAULTS[name].lasts else "patient")
            with REFUSALS[FAULTS[name].error](world.server, boss):
                meet(day, FAULTS[name])
            day.come_to_its_end()
            return day

        yield play


def meet(day: Day, fault: Fault) -> None:
    """Let every phase of a run meet the fault, and have it last as long as it has to."""
    day.have_one_ask()
    day.have_one_end()
    day.await_finish()
    day.await_refusal()
    if fault.lasts:
        day.await_loss()
    elif not fault.spares_holders:
        day.await_trouble()


@pytest.fixture(params=FAULTS)
def fault(request) -> str:
    return request.param


def test_at_acquire_an_error_is_an_outage_that_says_what_to_do_and_never_a_miss(fault, played):
    day = played(fault)
    (run,) = day.bench.ledger.starts(day.asks)

    assert day.asker.get() == day.asker_in_company.get() == "asked"
    assert run["task_id"] == day.asker.id
    assert day.bench.ledger.facts("task_retry", task_id=day.asker.id)
    assert day.logged(FAULTS[fault].advice)
    assert day.bench.ledger.facts("task_skipped", fence_key=f"job:{day.asks}") == []
    assert day.bench.ledger.overlaps(day.meets) == []


def test_while_held_an_error_is_survived_within_the_trust_and_is_a_loss_after_it(fault, played):
    day, kind = played(fault), FAULTS[fault]
    first, second = day.bench.ledger.starts(day.holds)
    failures = day.bench.ledger.facts("lease_renewal_failed", fence_key=f"job:{day.holds}")

    assert (first["task_id"], second["task_id"]) == (day.holder.id, day.next_of_held.id)
    assert second["token"] > first["token"]
    assert day.trusted_until < second["at"]
    assert day.next_of_held.get() == "next"
    assert day.lost == kind.lasts
    if kind.lasts:
        assert isinstance(day.holder.result, LeaseLost)
        assert "couldn't be renewed in time" in str(day.holder.result)
    else:
        assert day.holder.get() == "held"
        assert day.bench.ledger.overlaps(day.holds) == []
    assert bool(failures) == (not kind.spares_holders)


def test_at_release_a_finished_task_stays_finished_and_its_key_opens_again(fault, played):
    day = played(fault)
    first, second = day.bench.ledger.starts(day.ends)

    assert day.finished_in_time
    assert day.finisher.get() == "finished"
    assert (first["task_id"], second["task_id"]) == (day.finisher.id, day.next_of_ended.id)
    assert second["token"] > first["token"]
    assert day.bench.ledger.overlaps(day.ends) == []
    unreleased = day.logged(f"The lease on 'job:{day.ends}' couldn't be released")
    made_up_for = day.logged(f"Made up for the release of 'job:{day.ends}'")
    assert (unreleased, made_up_for) == (not FAULTS[fault].spares_holders,) * 2


def test_each_failure_is_signalled_and_ever_fewer_are_told_aloud(fault, played):
    """D04: fewer than twenty lines, however long it lasts."""
    day = played(fault)
    failures = day.bench.ledger.facts("lease_renewal_failed", fence_key=f"job:{day.holds}")
    lines = day.world.far_worker.log[day.logged_before :].count(f"Renewing 'job:{day.holds}' failed")

    assert len(failures) > 5 or not FAULTS[fault].lasts  # from the fourth on not each has a line
    assert lines == len(failures).bit_length()  # the first, second, fourth, eighth ...


def test_after_all_of_it_every_heartbeat_goes_on_and_nothing_is_left(world, played):
    """Every pool process of the far worker keeps a lease beyond its TTL."""
    for fault in FAULTS:
        played(fault)
    held = [world.hold("far", world.bench.key(), value="held") for _ in range(RUNS_AT_ONCE)]
    began = world.bench.ledger.facts("holding")[-1]["at"]
    wait_until(
        lambda: len({fact["pid"] for fact in renewed_after(world.bench, began + TTL)}) == RUNS_AT_ONCE,
        what="every pool process has renewed its lease beyond the TTL",
    )
    for _, gate in held:
        gate.open()

    assert [result.get(timeout=PATIENCE) for result, _ in held] == ["held"] * RUNS_AT_ONCE
    wait_until(lambda: list(world.bench.store.leases()) == [], timeout=TTL + 5, what="no lease is left")


def renewed_after(bench, moment):
    return [fact for fact in bench.ledger.facts("lease_renewed") if fact["at"] > moment]
