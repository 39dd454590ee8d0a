"""
Each fault alone, and pairs of them, against real workers: no promise is broken.

A round that fails says its seed and the command that plays it again, and where its histories are.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from rig import command, faketime, history
from rig.history import Record
from rig.load import messages
from rig.plan import FAULTS, make_plan, random_faults
from rig.report import Report
from rig.round import play

SECONDS = 6.0
SEED = 4000
PAIRS = (("F1", "F2"), ("F2", "F6"), ("F3", "F13"), ("F2", "F4"), ("F7", "F11"))

pytestmark = pytest.mark.timeout(300)


def played(
    seed: int, faults: Sequence[str], seconds: float = SECONDS, *, retention: bool = False
) -> tuple[Report, list[Record]]:
    """A round and its records; the histories of one that broke a promise are kept."""
    if "F10" in faults and faketime.library() is None:
        pytest.skip("no libfaketime here (Debian: faketime)")
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    report = play(make_plan(seed, faults, seconds, retention=retention), directory)
    records = history.read(directory)
    if not report.violations:
        shutil.rmtree(directory)
    return report, records


# --- what was seen of a fault by those whom it struck --------------------------------------------


def windows(records: Sequence[Record], fault: str) -> list[tuple[float, float]]:
    """From when till when each strike lasted."""
    mine = [record for record in records if record.what == "fault" and record["fault"] == fault]
    ends = {record["id"]: record.at for record in mine if record["phase"] == "end"}
    return [
        (record.at, ends[record["id"]])
        for record in mine
        if record["phase"] == "begin" and record["id"] in ends
    ]


def killed_are_silent(records: Sequence[Record]) -> bool:
    kills = [r for r in records if r.what == "fault" and r["fault"] == "F1" and r["phase"] == "end"]
    return all(not any(r.pid == kill["target"] and r.at > kill.at for r in records) for kill in kills)


def frozen_are_silent(records: Sequence[Record]) -> bool:
    """And for longer than a TTL, while they hold a lease."""
    ttl = next(record for record in records if record.what == "run")["ttl"]
    pauses = [r for r in records if r.what == "pause" and r["holders"] and r["ended"] - r["began"] > ttl]
    quiet = all(
        not any(r.pid == p["target_pid"] and p["began"] + 0.1 < r.at < p["ended"] - 0.1 for r in records)
        for p in pauses
    )
    return quiet and bool(pauses)


def store_calls_fail(fault: str, *words: str) -> Callable[[Sequence[Record]], bool]:
    """Some question that was open during a strike had no answer, or an error with one of *words*."""

    def seen(records: Sequence[Record]) -> bool:
        strikes = windows(records, fault)
        errors = [r for r in records if r.what == "answer" and "error" in r.facts]
        return any(
            began <= r.at <= ended + 2.0 and (not words or any(word in r["error"] for word in words))
            for r, (began, ended) in itertools.product(errors, strikes)
        )

    return seen


def somebody_waited(records: Sequence[Record]) -> bool:
    """Some answer took longer than any healthy one."""
    asked = {(r.pid, r["call"]): r.at for r in records if r.what == "ask"}
    took = [
        r.at - asked[r.pid, r["call"]] for r in records if r.what == "answer" and (r.pid, r["call"]) in asked
    ]
    return max(took) > 0.1


def copies_came(records: Sequence[Record]) -> bool:
    """The very same delivery was asked for by several owners."""
    owners: dict[str, set[str]] = {}
    for record in records:
        if record.what == "ask" and record["question"] == "acquire":
            for item in record["items"]:
                owners.setdefault(item["delivery"], set()).add(item["owner"])
    copied = {r["task_id"] for r in records if r.what == "published" and r["copies"] > 1}
    return any(
        len(mine) > 1 and any(task in delivery for task in copied) for delivery, mine in owners.items()
    )


def hooks_came_to_their_end(records: Sequence[Record]) -> bool:
    return len({r["detail"] for r in records if r.what == "fault" and r["phase"] == "end"}) >= 2


def memory_was_full(records: Sequence[Record]) -> bool:
    """Something was evicted, or writes were refused."""
    evicted = [r for r in records if r.what == "fault" and r["phase"] == "end" and r["target"] != "0 evicted"]
    return bool(evicted) or store_calls_fail("F9", "OOM")(records)


def tokens_show_the_step(records: Sequence[Record]) -> bool:
    """Tokens are the server's time in us: during a step they lie apart from the others'."""
    return any(
        abs(record["step"]) > 0
        for record in records
        if record.what == "fault" and record["target"] == "server"
    )


EFFECTS: Mapping[str, Callable[[Sequence[Record]], bool]] = {
    "F1": killed_are_silent,
    "F2": frozen_are_silent,
    "F3": store_calls_fail("F3"),
    "F6": store_calls_fail("F6"),
    "F7": somebody_waited,
    "F9": memory_was_full,
    "F10": tokens_show_the_step,
    "F11": copies_came,
    "F13": hooks_came_to_their_end,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_promise_is_broken_by(fault):
    report, records = played(SEED + FAULTS.index(fault), [fault])

    assert not report.violations, str(report)
    assert report.strikes[fault] >= 1
    assert EFFECTS.get(fault, lambda _: True)(records), f"nobody has felt {fault}: {report}"
    assert sum(report.kinds.values()) == report.tasks


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_no_promise_is_broken_by_the_pair(pair):
    report, _ = played(SEED + 100 + PAIRS.index(pair), pair)

    assert not report.violations, str(report)
    assert all(report.strikes[fault] for fault in pair)


def test_without_faults_everything_is_done_and_the_store_forgets_it_all():
    report, records = played(SEED, [], retention=True)

    assert not report.violations, str(report)
    assert report.refused == 0
    assert report.kinds["done"] > 0.7 * report.tasks > 0
    assert report.kinds.get("lost_failure", 0) == 0
    assert {r["moment"] for r in records if r.what == "keys"} == {"before", "after", "later"}
    assert [r["refused"] for r in records if r.what == "probed"] == [{}]
    assert any(r.what == "leases" for r in records)


# --- the plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [FAULTS, ("F2",), ()], ids=["all", "F2", "none"])
def test_a_seed_gives_one_plan(faults):
    def plan():
        made = make_plan(17, faults, 30.0)
        return made, list(made.strikes()), [(m, m.plan) for m in itertools.islice(messages(made), 500)]

    assert plan() == plan()
    assert random_faults(17) == random_faults(17)


def test_another_seed_gives_another_plan():
    first, second = make_plan(1, FAULTS, 30.0), make_plan(2, FAULTS, 30.0)

    assert list(first.strikes()) != list(second.strikes())
    assert list(itertools.islice(messages(first), 50)) != list(itertools.islice(messages(second), 50))


def test_a_shorter_round_is_the_beginning_of_a_longer_one():
    short, long = list(make_plan(5, FAULTS, 10.0).strikes()), list(make_plan(5, FAULTS, 40.0).strikes())

    assert short == long[: len(short)]
    assert len(short) > 10


def test_a_soak_meets_every_fault():
    assert {fault for seed in range(100) for fault in random_faults(seed)} == set(FAULTS)


def test_without_libfaketime_a_soak_leaves_the_clocks_alone_and_a_round_that_names_them_is_refused(
    monkeypatch,
):
    monkeypatch.setattr(faketime, "library", lambda: None)
    others = set(FAULTS) - {"F10"}

    assert {fault for seed in range(100) for fault in random_faults(seed, command.playable())} == others
    with pytest.raises(argparse.ArgumentTypeError, match="F10 can't be played: no libfaketime here: install"):
        command.named_faults("F2+F10")


def test_a_clock_that_steps_never_meets_a_store_that_forgets():
    """Tokens can't grow then, which is said in the guarantees: it is nothing to ask for."""
    for other in FAULTS:
        plan = make_plan(1, ("F10", other), 30.0)
        forgets = other in ("F3", "F4", "F9")
        assert any(strike.fault == "F10" for strike in plan.strikes()) is not forgets
        assert any(worker.skew for worker in plan.workers)


def test_an_unknown_fault_is_refused():
    with pytest.raises(ValueError, match="F99"):
        make_plan(1, ["F2", "F99"], 1.0)
