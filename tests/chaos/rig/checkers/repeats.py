"""
I5 and G7: a delivery whose end was remembered doesn't run again, and a run commits each effect once.

An end counts as remembered when the release that carried it was answered with "released", when a terminal decision
on a miss was answered with "held" by another message's holder, or when its note was answered. After that no owner
that asks for the first time is let in for the same delivery. A body that failed runs again as long as its
epilogue wasn't noted: asked only after the note.

Not asked where the server lost data since, nor after the retention. Can't see the repeats of a run that was
killed before its end: they are allowed, and fenced.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from rig.checkers.evidence import Asked, Evidence
from rig.checkers.violation import Violation

Delivery = tuple[str, str]


@dataclass(frozen=True, slots=True)
class End:
    """How a delivery ended, and since when that is surely remembered."""

    how: str
    asked: float
    answered: float


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each delivery that was let in after its end, and each effect that a run committed twice."""
    yield from _ran_again(evidence)
    for (run, effect), times in Counter((row.run, row.effect) for row in evidence.ledger.writes).items():
        if times > 1:
            text = f"the effect {effect} of run {run} was committed {times} times"
            yield Violation("I5", text, facts={"run": run, "effect": effect})


def _ran_again(evidence: Evidence) -> Iterator[Violation]:
    retention = float(evidence.setting("retention", inf))
    ends = _ends(evidence)
    started = {record["owner"] for record in evidence.of("start")}
    for (key, owner), asked in evidence.by_owner.items():
        wishes = [each for each in asked if each.question == "acquire"]
        granted = next((each for each in wishes if each.answer == "granted"), None)
        if granted is None or not (granted.delivery or owner in started):
            continue
        delivery = wishes[0].delivery  # what follows an answer that it has ended may be asked without it
        for end in ends.get((key, delivery), ()):
            fresh = granted.answered - end.asked <= retention
            if end.answered < wishes[0].at and fresh and not evidence.data_lost(end.asked, granted.answered):
                yield _violation(end, granted, delivery)
                break


def _ends(evidence: Evidence) -> dict[Delivery, list[End]]:
    ends: defaultdict[Delivery, list[End]] = defaultdict(list)
    messages = {each.owner: each.message for each in evidence.asked if each.question == "acquire"}
    for each in evidence.asked:
        how = _remembered(each, messages)
        if how and each.delivery:
            ends[each.key, each.delivery].append(End(how, each.at, each.answered))
    return ends


def _remembered(asked: Asked, messages: dict[str, str]) -> str:
    """How the delivery ended for good, by this question; empty if it may run again."""
    match asked.question:
        case "release" if asked.answer == "released" and asked.how != "failed":
            return asked.how
        case "note" if asked.answer == "noted":
            return "noted"
        case "acquire" if asked.answer == "held":
            other = messages.get(asked.holder)
            return asked.if_held if other and other != asked.message else ""
        case _:
            return ""


def _violation(end: End, granted: Asked, delivery: str) -> Violation:
    return Violation(
        "I5",
        f"the delivery {delivery} had ended ({end.how}) {granted.at - end.answered:.3f} s before it was let in again",
        granted.answered,
        {"end": end, "granted": granted},
    )
