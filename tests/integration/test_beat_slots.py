"""
Two real beats for one schedule, at once and one after the other: each slot runs once.

The second one starts while the first is at work, and goes on when that one is killed; the
task without a record shows what both have sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bench.app import WORLD
from bench.slots import add_tasks, beat_conf
from bench.waiting import wait_until
from bench.worker import HERE, ROOT

from celery_fence.task.slot import HEADER

FEW = 3
KEY = "report"


@contextmanager
def beat(bench: Any, name: str) -> Iterator[subprocess.Popen]:
    """A beat process with a schedule file of its own, which is killed at the end."""
    state = bench.directory / f"schedule-{name}"
    path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    process = subprocess.Popen(
        [*(sys.executable, "-m", "celery", "-A", "bench.slots", "beat", "-s", str(state), "--pidfile=")],
        env={**os.environ, "PYTHONPATH": path, WORLD: json.dumps({**bench.conf, **beat_conf(KEY)})},
        stdout=(bench.directory / f"beat-{name}.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="module")
def bench(make_bench: Any) -> Any:
    bench = make_bench("redis")
    add_tasks(bench.app)
    bench.worker(app="bench.slots", concurrency=2)
    return bench


def slots(bench, key):
    return [each["slot"] for each in bench.ledger.facts("tick", key=key)]


def doubles(bench):
    """The slots of which more than one message has run, as nothing held it back."""
    return [slot for slot, times in Counter(slots(bench, f"{KEY}!")).items() if times > 1]


def await_later_slots(bench, after, what):
    wait_until(
        lambda: len({slot for slot in slots(bench, KEY) if slot > after}) >= FEW,
        timeout=60,
        what=f"{FEW} more slots have run {what}",
    )


@pytest.fixture(scope="module")
def played(bench):
    """One beat; a second one at the same time; the second alone; a third one alone."""
    with beat(bench, "second") as second:
        with beat(bench, "first"):
            wait_until(
                lambda: len(doubles(bench)) >= FEW, timeout=90, what="both beats have sent the same slots"
            )
        await_later_slots(bench, max(slots(bench, KEY)), "with the second alone")
        second.kill()
        second.wait(10)
    with beat(bench, "third"):
        await_later_slots(bench, max(slots(bench, KEY)), "with the third")
    wait_until(lambda: not list(bench.store.leases()), what="no run is under way")


@pytest.mark.usefixtures("played")
def test_two_beats_at_once_and_one_after_the_other_run_each_slot_once(bench):
    ran = slots(bench, KEY)

    assert len(doubles(bench)) >= FEW
    assert len(ran) > 2 * FEW
    assert [slot for slot, times in Counter(ran).items() if times > 1] == []
    assert set(doubles(bench)) <= set(ran)


@pytest.mark.usefixtures("played")
def test_the_slots_are_those_of_the_grid_and_the_entry_s_own_headers_are_kept(bench):
    ran = bench.ledger.facts("tick", key=KEY)

    assert all(int(each["slot"][-3:-1]) % 2 == 0 for each in ran)
    assert {each["mine"] for each in ran} == {1}


def test_a_run_that_was_sent_by_hand_is_told_what_it_lacks(bench):
    result = bench.app.tasks["tick"].apply_async(("by hand",))

    with pytest.raises(Exception, match="SlotScheduler"):
        result.get(timeout=30)
    assert slots(bench, "by hand") == []


def test_a_retry_keeps_the_slot(bench):
    slot = "20261129T183000Z"
    result = bench.app.tasks["retrying_tick"].apply_async(("again",), headers={HEADER: slot})

    assert result.get(timeout=30) == [slot, f"tick:again:{slot}"]
