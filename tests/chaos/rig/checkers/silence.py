"""
I6, the other half: no lease is lost because nobody asked for it any more.

Asked of every lease that its holder lost by its own clock: from the moment its renewal was due until trust ended,
its process asked for a renewal, of this lease or, if that took its time, of another. A process that got no
processor couldn't, so it is asked only of one that was evidently awake: it noted at least `SIGNS` other things,
spread over the silence. A holder that asked and got no answer, or was refused, did what it could: whether it
was rightly refused is G1's.

Can't see a heartbeat that died in a process that does nothing else, nor the silence of less than `LEAST` seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rig.checkers.evidence import Asked, Evidence
from rig.checkers.violation import Violation

RENEWAL = 1 / 3
"""A renewal is due after this part of the TTL, as the design has it."""

AGAIN = 0.15
"""Seconds after which a failed renewal has been tried again; the longest pause is 0.11 s at these TTLs."""

LEAST = 0.25
SIGNS = 3
LONGEST_NAP = 0.5
"""The largest part of a silence that may pass without a sign."""


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each lease that expired in a process that was awake and didn't ask."""
    renewals = _renewals(evidence)
    signs = _signs(evidence)
    for lost in evidence.of("lost"):
        asked = evidence.by_owner.get((lost["key"], lost["owner"]), ())
        kept = _kept_in_time([each for each in asked if each.keeps and each.answered <= lost.at])
        if lost.get("reason") != "expired" or not kept:
            continue
        until = max(each.trusted_until for each in kept)
        since = _since(kept, renewals[kept[0].pid], until)
        if until - since >= LEAST and _awake(signs[kept[0].pid], since, until):
            text = (
                f"{lost['owner']} lost {lost['key']!r}: nobody asked for its renewal in the last {until - since:.3f} s"
                " of its trust, and its process was awake"
            )
            yield Violation("I6", text, lost.at, {"lost": dict(lost.facts), "since": since, "until": until})


def _kept_in_time(asked: Iterable[Asked]) -> list[Asked]:
    """What the holder could still go by: an answer that came when trust was over kept nothing, felt lost or not yet."""
    kept: list[Asked] = []
    for each in sorted(asked, key=lambda each: each.answered):
        if not kept or each.answered < max(earlier.trusted_until for earlier in kept):
            kept.append(each)
    return kept


def _since(kept: Sequence[Asked], renewals: Sequence[Asked], until: float) -> float:
    """Since when a renewal has been overdue, without one of the process being under way."""
    last = max(kept, key=lambda each: each.at)
    overdue = last.at + last.ttl * RENEWAL
    under_way = (each.answered + AGAIN for each in renewals if each.at < until and each.answered > overdue)
    return max(overdue, max(under_way, default=overdue))


def _awake(signs: Sequence[float], since: float, until: float) -> bool:
    heard = signs[bisect_right(signs, since) : bisect_right(signs, until)]
    nap = max((later - earlier for earlier, later in pairwise((since, *heard, until))), default=0.0)
    return len(heard) >= SIGNS and nap <= LONGEST_NAP * (until - since)


def _renewals(evidence: Evidence) -> defaultdict[int, list[Asked]]:
    found: defaultdict[int, list[Asked]] = defaultdict(list)
    for each in evidence.asked:
        if each.question in ("renew", "note"):  # both are the heartbeat thread's work
            found[each.pid].append(each)
    return found


def _signs(evidence: Evidence) -> defaultdict[int, list[float]]:
    found: defaultdict[int, list[float]] = defaultdict(list)
    for records in evidence.records.values():
        for record in records:
            found[record.pid].append(record.at)
    for moments in found.values():
        moments.sort()
    return found
