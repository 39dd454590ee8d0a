"""A release that isn't answered at once: what the finished run, the next one and the observers see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from bench.bad_day import BadDay
from bench.waiting import wait_until

TTL = 40.0
"""So long that one try of a call to the lease server, an eighth of it, lasts as long as others take to come and go."""


@pytest.fixture(scope="module")
def world(make_bench) -> Iterator[BadDay]:
    with ExitStack() as stack:
        yield BadDay(make_bench(fence_ttl=TTL), stack)


def test_a_run_whose_release_lost_its_reply_is_not_told_of_a_loss_when_others_have_had_the_key_since(world):
    """The server knows only who released last, and that is another by the time it is asked again."""
    key, bench = world.bench.key(), world.bench
    world.send("near", "patient", bench.key()).get(timeout=30)  # the server knows the scripts
    finisher, gate = world.hold("far", key, value="finished")
    world.far.hold_replies()
    gate.open()
    wait_until(lambda: bench.holder(key) is None, what="the release was carried out")
    assert world.send("near", "patient", key, value="next").get(timeout=30) == "next"
    wait_until(lambda: bench.holder(key) is None, what="its successor has released, too")
    world.far.reset()
    world.far.heal()

    assert finisher.get(timeout=30) == "finished"
    released = wait_until(
        lambda: [f["outcome"] for f in bench.ledger.facts("lease_released", fence_key=f"job:{key}")][1:],
        what="both releases are told of",
    )
    assert released == ["released"]
    assert bench.ledger.facts("lease_lost", fence_key=f"job:{key}") == []
    assert "was no longer ours" not in world.far_worker.log
