"""
The way to the lease server is bad, or the server starts anew: what holder, waiter and result see.

Each fault strikes once, at a run that asks for its lease, at one that holds it and at one that
releases it (`bench.bad_day`); the three tests look at one phase each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from bench.bad_day import PATIENCE, RUNS_AT_ONCE, TIMEOUT, TTL, BadDay, Day, digest_of
from bench.waiting import wait_until
from redis import Redis

from celery_fence import LeaseLost


@dataclass(frozen=True, slots=True)
class Fault:
    """What strikes, and what is to be seen of it."""

    strike: Callable[[Day], None]
    refused: bool = True
    """No lease is to be had meanwhile."""
    lost: bool = False
    """It outlasts the trust of the holder."""
    unreleased: bool = True
    """A release isn't answered meanwhile."""
    overlaps: bool = False
    """Data are lost, and with them exclusion until the holder's next beat."""


def unseen(strike: Callable[[Day], None]) -> Fault:
    """A fault that the client gets over by itself."""
    return Fault(strike, refused=False, unreleased=False)


def lost_replies(day: Day) -> None:
    """Each question is heard once, and its reply is cut off together with the connection."""
    proxy = day.world.far
    before = proxy.cuts
    proxy.cut_reply_to(digest_of("acquire"))
    day.have_one_ask()
    wait_until(lambda: proxy.cuts == before + 1, what="the reply to an acquire was cut")
    proxy.cut_reply_to(digest_of("release"))
    day.have_one_end()
    wait_until(lambda: proxy.cuts == before + 2, what="the reply to a release was cut")
    day.await_finish()
    proxy.cut_reply_to(digest_of("renew"))
    wait_until(lambda: proxy.cuts == before + 3, what="the reply to a renewal was cut")


def forgotten_connections(day: Day) -> None:
    """A firewall forgets what is open: those connections stay, and say nothing more."""
    day.world.far.deafen()
    both(day)
    assert day.asker.get(timeout=PATIENCE) == "asked"


def a_little_slow(day: Day) -> None:
    """Each reply takes a while, and less than may be waited for."""
    day.world.far.delay = TIMEOUT / 4
    both(day)
    assert day.asker.get(timeout=PATIENCE) == "asked"
    day.await_renewal()


def too_slow(day: Day) -> None:
    """Each reply takes longer than is waited for; the server hears and acts all the while."""
    day.world.far.delay = 2 * TIMEOUT
    until_lost(day)


def partition(day: Day) -> None:
    """Nothing passes; it is over before the holder's trust is."""
    day.world.far.hold()
    until_trouble(day)


def long_partition(day: Day) -> None:
    """Nothing passes, for longer than the holder may trust its lease."""
    day.world.far.hold()
    until_lost(day)


def requests_held(day: Day) -> None:
    """The server hears nothing, and then everything late."""
    day.world.far.hold_requests()
    until_lost(day)


def replies_held(day: Day) -> None:
    """The server hears and grants, and nobody hears of it."""
    day.world.far.hold_replies()
    until_lost(day)


def refusal(day: Day) -> None:
    """Nobody listens, as while a server is being moved."""
    day.world.far.go_down()
    until_trouble(day)


def server_pauses(day: Day) -> None:
    """The server accepts everything and answers later (CLIENT PAUSE; not ALL, or nobody could end it)."""
    with Redis.from_url(day.world.server.url) as admin:
        admin.client_pause(600_000, all=False)
        until_trouble(day)
        admin.client_unpause()


def server_freezes(day: Day) -> None:
    """The server's process stands still beyond the TTL: also its keys expire only when it goes on."""
    day.world.server.pause()
    until_lost(day)


def restart_with_data(day: Day) -> None:
    """The server dies (SIGKILL) and comes back with all it knew."""
    day.world.server.kill()
    until_trouble(day)


def restart_without_data(day: Day) -> None:
    """The server dies and comes back empty, and the holder is there before anybody else."""
    day.world.near.go_down()
    day.world.server.kill()
    until_trouble(day)
    day.world.forget_everything()
    day.await_renewal()
    day.world.near.heal()


def newcomer_comes_first(day: Day) -> None:
    """The server comes back empty, and another one is there before the holder: both have the key for a moment."""
    day.world.far.go_down()
    both(day)
    day.await_refusal()
    day.world.forget_everything()
    wait_until(lambda: len(day.bench.ledger.starts(day.holds)) == 2, what="a newcomer has the key")
    day.world.far.heal()
    day.await_loss()


def both(day: Day) -> None:
    """One asks and one ends."""
    day.have_one_ask()
    day.have_one_end()
    day.await_finish()


def until_trouble(day: Day) -> None:
    """... and the fault lasts until a renewal has failed."""
    both(day)
    day.await_refusal()
    day.await_trouble()


def until_lost(day: Day) -> None:
    """... and the fault lasts until the holder has given up."""
    both(day)
    day.await_refusal()
    day.await_loss()


FAULTS = {
    "lost replies": unseen(lost_replies),
    "forgotten connections": unseen(forgotten_connections),
    "slow": unseen(a_little_slow),
    "too slow": Fault(too_slow, lost=True),
    "refusal": Fault(refusal),
    "partition": Fault(partition),
    "long partition": Fault(long_partition, lost=True),
    "requests held": Fault(requests_held, lost=True),
    "replies held": Fault(replies_held, lost=True),
    "server pauses": Fault(server_pauses),
    "server freezes": Fault(server_freezes, lost=True),
    "restart with data": Fault(restart_with_data),
    "restart without data": Fault(restart_without_data),
    "restart without data, a newcomer comes first": Fault(newcomer_comes_first, lost=True, overlaps=True),
}


@pytest.fixture(scope="module")
def world(make_bench) -> Iterator[BadDay]:
    with ExitStack() as stack:
        yield BadDay(make_bench(fence_ttl=TTL), stack)


@pytest.fixture(scope="module")
def played(world) -> Callable[[str], Day]:
    """Let a fault strike, once; the three tests of it share what was seen."""

    days: dict[str, Day | None] = {}

    def play(name: str) -> Day:
        if name not in days:
            days[name] = None  # what goes wrong goes wrong once, and not for three tests
            days[name] = strike(name)
        day = days[name]
        assert day is not None, f"{name} could not be played to its end before"
        return day

    def strike(name: str) -> Day:
        day = Day(world)
        try:
            FAULTS[name].strike(day)
        finally:
            world.far.heal()
            world.near.heal()
            world.server.start()
            world.server.resume()
        day.come_to_its_end()
        return day

    return play


@pytest.fixture(params=FAULTS)
def fault(request) -> str:
    return request.param


def test_at_acquire_no_body_runs_without_a_confirmed_grant_and_no_outage_is_taken_for_a_miss(fault, played):
    day = played(fault)
    (run,) = day.bench.ledger.starts(day.asks)
    meeting = day.bench.ledger.starts(day.meets)

    assert day.asker.get() == day.asker_in_company.get() == "asked"
    assert run["task_id"] == day.asker.id
    assert {run["task_id"] for run in meeting} == {day.asker_in_company.id, day.next_of_asked.id}
    assert (len(meeting), day.bench.ledger.overlaps(day.meets)) == (2, [])
    assert bool(day.bench.ledger.facts("task_retry", task_id=day.asker.id)) == FAULTS[fault].refused
    assert day.logged("StoreUnavailable") == FAULTS[fault].refused
    assert day.bench.ledger.facts("task_skipped", fence_key=f"job:{day.asks}") == []


def test_while_held_the_lease_is_kept_or_lost_on_the_holders_own_clock_before_anybody_else_is_let_in(
    fault, played
):
    day, lost = played(fault), FAULTS[fault].lost
    first, second = day.bench.ledger.starts(day.holds)

    assert (first["task_id"], second["task_id"]) == (day.holder.id, day.next_of_held.id)
    assert (day.trusted_until < second["at"]) != FAULTS[fault].overlaps
    assert second["token"] > first["token"]
    assert day.next_of_held.get() == "next"
    assert day.lost == lost
    if lost:
        why = "another owner|newer token" if FAULTS[fault].overlaps else "couldn't be renewed in time"
        with pytest.raises(LeaseLost, match=why):
            day.holder.get()
    else:
        assert day.holder.get() == "held"
        assert day.bench.ledger.overlaps(day.holds) == []
    failed = day.logged(f"Renewing 'job:{day.holds}' failed")
    assert failed == FAULTS[fault].refused or FAULTS[fault].overlaps


def test_at_release_a_finished_task_stays_finished_and_its_key_opens_again(fault, played):
    day = played(fault)
    first, second = day.bench.ledger.starts(day.ends)

    assert day.finished_in_time
    assert day.finisher.get() == "finished"
    assert (first["task_id"], second["task_id"]) == (day.finisher.id, day.next_of_ended.id)
    assert second["token"] > first["token"]
    assert day.bench.ledger.overlaps(day.ends) == []
    assert day.logged(f"The lease on 'job:{day.ends}' couldn't be released") == FAULTS[fault].unreleased
    assert day.logged(f"Made up for the release of 'job:{day.ends}'") == FAULTS[fault].unreleased


def test_after_all_of_it_every_heartbeat_goes_on_and_nothing_is_left(world, played):
    """Every pool process of the far worker keeps a lease beyond its TTL."""
    for fault in FAULTS:
        played(fault)
    held = [world.hold("far", world.bench.key(), value="held") for _ in range(RUNS_AT_ONCE)]
    began = world.bench.ledger.facts("holding")[-1]["at"]
    wait_until(
        lambda: len({fact["pid"] for fact in renewed_after(world, began + TTL)}) == RUNS_AT_ONCE,
        what="every pool process has renewed its lease beyond the TTL",
    )
    for _, gate in held:
        gate.open()

    assert [result.get(timeout=PATIENCE) for result, _ in held] == ["held"] * RUNS_AT_ONCE
    wait_until(lambda: list(world.bench.store.leases()) == [], timeout=TTL + 5, what="no lease is left")


def renewed_after(world: BadDay, moment: float) -> list[dict[str, Any]]:
    return [fact for fact in world.bench.ledger.facts("lease_renewed") if fact["at"] > moment]
