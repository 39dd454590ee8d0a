"""
I4, conservation: every message that was published ends in exactly one outcome.

Asked once the run is over: each published task id has one outcome and nothing waits; one that is done has a run that
reached its end; one whose end as "returned" was remembered by the server is done and nothing else; exactly those
that were dead-lettered lie in the dead-letter queue; no outcome is written over another; and once the queues
are empty, no more deliveries are missing than killed workers may have taken along (see `rig.transit`).

Those about a remembered end, letters and a second outcome aren't asked where the server lost data: what it had decided
is forgotten then, and decided again; nor of what the broker lost. Can't see what happened to a message that nobody
published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

from rig.checkers.evidence import Evidence
from rig.checkers.violation import Violation
from rig.history import Record
from rig.transit import SEEN, Transit

LOST = "lost_by_broker"
"""A worker was killed with it between the broker's queue and the broker's note of it: see `rig.transit`."""

KINDS = frozenset({"done", "skipped", "dead_lettered", "raised", "lost_failure", "failure", LOST})


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each message with no outcome, two, or one that its history contradicts."""
    if evidence.online:
        return
    yield from _counted(evidence)
    yield from _waiting(evidence)
    yield from _never_ran(evidence)
    yield from _missing(evidence)
    if not evidence.data_lost(0.0, inf):
        yield from _ended_otherwise(evidence)
        yield from _misplaced_letters(evidence)
        yield from _overwritten(evidence)


def _counted(evidence: Evidence) -> Iterator[Violation]:
    outcomes = Counter(record["task_id"] for record in evidence.of("outcome") if record["kind"] in KINDS)
    for record in evidence.of("published"):
        found = outcomes[record["task_id"]]
        if found != 1:
            yield _violation(record, f"was published and has {found} outcomes")


def _waiting(evidence: Evidence) -> Iterator[Violation]:
    for record in evidence.of("drained"):
        if not record["ok"]:
            waiting = record["waiting"]
            text = f"{len(waiting)} messages still wait after the drain: {', '.join(map(str, waiting[:5]))}"
            yield Violation("I4", text, record.at, dict(record.facts))


def _never_ran(evidence: Evidence) -> Iterator[Violation]:
    tasks = _task_of_run(evidence)
    ran = {tasks.get(record["run"]) for record in evidence.of("end") if record["how"] == "returned"}
    for record in evidence.of("outcome"):
        if record["kind"] == "done" and record["task_id"] not in ran:
            yield _violation(record, "is done, but no run of it reached its end")


def _missing(evidence: Evidence) -> Iterator[Violation]:
    if any(not record["ok"] for record in evidence.of("drained")) or not evidence.of("drained"):
        return
    transit = Transit()
    for what in SEEN:
        transit.read(evidence.of(what))
    for task_id in transit.losses().unexplained:
        text = "was put into its queue, no worker took it, and no killed one can have taken it along"
        yield Violation("I4", f"task {task_id} {text}", evidence.of("drained")[-1].at, {"task_id": task_id})


def _ended_otherwise(evidence: Evidence) -> Iterator[Violation]:
    tasks = {record["owner"]: record["task_id"] for record in evidence.of("start")}
    returned = {
        tasks.get(each.owner)
        for each in evidence.asked
        if each.answer == "released" and each.how == "returned" and each.delivery
    }
    for record in evidence.of("outcome"):
        if record["task_id"] in returned and record["kind"] not in ("done", LOST):
            yield _violation(record, f"returned, and that was remembered, but it is {record['kind']}")


def _misplaced_letters(evidence: Evidence) -> Iterator[Violation]:
    for record in evidence.of("outcome"):
        letters = record.get("letters")
        if (
            record["kind"] != LOST
            and letters is not None
            and (letters > 0) != (record["kind"] == "dead_lettered")
        ):
            yield _violation(record, f"is {record['kind']}, with {letters} letters in the dead-letter queue")


def _overwritten(evidence: Evidence) -> Iterator[Violation]:
    """The driver looked when the message ended, and again at the end of the run."""
    for record in evidence.of("outcome"):
        if record.get("first") not in (None, record["kind"]):
            yield _violation(record, f"ended as {record['first']}, and then as {record['kind']}")


def _task_of_run(evidence: Evidence) -> dict[str, str]:
    return {record["run"]: record["task_id"] for record in evidence.of("start")}


def _violation(record: Record, text: str) -> Violation:
    return Violation("I4", f"task {record['task_id']} {text}", record.at, dict(record.facts))
