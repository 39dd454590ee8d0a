"""
I7, the trust window: no guarded section begins after its owner's own deadline.

The deadline is computed from the questions that had been answered by the time the section was noted: the latest
of them, plus the TTL, less the margin. The section's clock was read BEFORE `check()`, and the holder counts
from a moment before the question was noted, so whatever passes later than this was let through wrongly. Nor does
one pass after the same owner noted its loss. Can't see a section that began too late by less than the time between
those readings.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from rig.checkers.evidence import Evidence
from rig.checkers.violation import Violation
from rig.history import Record


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each section that passed when it shouldn't have."""
    lost: dict[tuple[str, str], float] = {}
    for record in evidence.of("lost"):
        lost.setdefault((record["key"], record["owner"]), record.at)
    for section in evidence.of("section"):
        if not section["passed"] or not section.get("owner"):
            continue
        whose = (section["key"], section["owner"])
        deadline = min(_deadline(evidence, section), lost.get(whose, inf))
        if section["before"] > deadline:
            late = section["before"] - deadline
            text = f"a section of {section['owner']} on {section['key']!r} began {late:.3f} s after its trust had ended"
            yield Violation("I7", text, section.at, dict(section.facts))


def _deadline(evidence: Evidence, section: Record) -> float:
    asked = evidence.by_owner.get((section["key"], section["owner"]), ())
    known = (each.trusted_until for each in asked if each.keeps and each.answered <= section.at)
    return max(known, default=-inf)
