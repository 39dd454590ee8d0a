"""
G1, exclusion: two owners never trust one key at the same time.

An owner's *window* is computed from its questions, not from what it said about itself: it opens when the
grant is there and closes, at the latest, a TTL less the margin after the last question that was answered with
"yours"; at its own release's question; or when it noticed the loss. The server granted each somewhere
between question and answer, so where two windows share a moment, the later of the two grants was given while the
other lease was alive, whichever came first.

The other half: a lease whose last question was answered less than a TTL ago can't be gone.

Not asked where the server lost data or its clock moved between the first question and the second answer, nor
across a force release. A release that took its time isn't asked either: its reply may have been lost, and somebody
else have come and gone before it was repeated. Can't see an overlap that is shorter than questions and answers
travel, nor the time that the margin adds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from rig.checkers.evidence import Asked, Evidence
from rig.checkers.violation import Violation

ONCE = 0.02
"""Seconds within which a question was surely asked only once: the client rests for longer before it repeats one."""


@dataclass(frozen=True, slots=True)
class Window:
    """When *owner* surely held *key* and trusted it: from *opened* until *closed*; *asked* is its question."""

    key: str
    owner: str
    token: int
    asked: float
    opened: float
    closed: float


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each pair of overlapping windows, and each lease that was gone while it was alive."""
    forced = _force_releases(evidence)
    for key, windows in _windows(evidence).items():
        for earlier, later in _overlaps(windows):
            if _reliable(evidence, forced[key], min(earlier.asked, later.asked), later.opened):
                yield _overlap(earlier, later)
    for (key, _), asked in evidence.by_owner.items():
        for kept, gone in _gone_alive(asked):
            if _reliable(evidence, forced[key], kept.at, gone.answered):
                yield _gone(kept, gone)


def _windows(evidence: Evidence) -> dict[str, list[Window]]:
    noticed: dict[tuple[str, str], float] = {}
    for record in evidence.of("lost"):
        noticed.setdefault((record["key"], record["owner"]), record.at)
    windows: defaultdict[str, list[Window]] = defaultdict(list)
    for (key, owner), asked in evidence.by_owner.items():
        grants = [each for each in asked if each.answer == "granted"]
        if not grants:
            continue
        trusted = max(each.trusted_until for each in asked if each.keeps)
        released = _first_release(asked)
        closed = min(trusted, released, noticed.get((key, owner), inf))
        window = Window(key, owner, grants[0].token, grants[0].at, grants[0].answered, closed)
        if window.opened < window.closed:
            windows[key].append(window)
    return windows


def _overlaps(windows: Sequence[Window]) -> Iterator[tuple[Window, Window]]:
    """Pairs of different owners that share a moment, the one that opened first in front."""
    open_now: list[Window] = []
    for window in sorted(windows, key=lambda each: each.opened):
        open_now = [each for each in open_now if each.closed > window.opened]
        yield from ((each, window) for each in open_now)
        open_now.append(window)


def _gone_alive(asked: Sequence[Asked]) -> Iterator[tuple[Asked, Asked]]:
    """Pairs of a question answered with "yours" and a later one answered with "gone" before its TTL was over."""
    released = _first_release(asked)
    for gone in asked:
        if gone.answer != "gone" or _released_before(gone, released):
            continue
        before = [each for each in asked if each.keeps and each.answered <= gone.at]
        kept = max(before, key=lambda each: each.at + each.ttl, default=None)
        if kept is not None and gone.answered < kept.at + kept.ttl:
            yield kept, gone


def _released_before(gone: Asked, released: float) -> bool:
    """Whether the owner's own release, first asked for at *released*, may be why it is gone."""
    if gone.question == "release":
        return released < gone.at or gone.answered - gone.at > ONCE
    return released < gone.answered


def _first_release(asked: Sequence[Asked]) -> float:
    return min((each.at for each in asked if each.question == "release"), default=inf)


def _force_releases(evidence: Evidence) -> defaultdict[str, list[Asked]]:
    forced: defaultdict[str, list[Asked]] = defaultdict(list)
    for each in evidence.asked:
        if each.question == "force_release":
            forced[each.key].append(each)
    return forced


def _reliable(evidence: Evidence, forced: Sequence[Asked], since: float, until: float) -> bool:
    if any(each.at <= until and each.answered >= since for each in forced):
        return False
    return evidence.reliable(since, until)


def _overlap(earlier: Window, later: Window) -> Violation:
    return Violation(
        "G1",
        f"{later.key!r} was granted to {later.owner} (token {later.token}) while {earlier.owner} "
        f"(token {earlier.token}) trusted it for {earlier.closed - later.opened:.3f} s more",
        later.opened,
        {"earlier": earlier, "later": later},
    )


def _gone(kept: Asked, gone: Asked) -> Violation:
    return Violation(
        "G1",
        f"the lease of {gone.owner} on {gone.key!r} was gone ({gone.reason}) {gone.answered - kept.at:.3f} s after a "
        f"question that gave it {kept.ttl:g} s",
        gone.answered,
        {"kept": kept, "gone": gone},
    )
