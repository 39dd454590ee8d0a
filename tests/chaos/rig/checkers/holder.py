"""Whether somebody who has a key works on it: what the server said of a holder, against what that holder did."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from rig.checkers.evidence import Asked, Evidence

Whose = tuple[str, str]
"""A key and an owner."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The server said, at some moment from *at* to *answered*, that *holder* has *key*."""

    key: str
    holder: str
    at: float
    answered: float


@dataclass(frozen=True, slots=True)
class Body:
    """When an owner's body began and ended; *ended* is infinite as long as it hasn't."""

    began: float
    ended: float


def seen(miss: Asked) -> Sight:
    """What somebody was told who was refused the key."""
    return Sight(miss.key, miss.holder, miss.at, miss.answered)


def silence(evidence: Evidence, sight: Sight) -> str:
    """Why the holder can't be there any more: it hasn't asked to keep the key for too long. Empty if it can."""
    asked = asked_before(evidence, sight)
    if not asked:
        return "somebody who never asked for it"
    sign = max((_sign(each, sight) for each in asked if each.may_keep), default=0.0)
    waited = sight.at - max(sign, _calm_since(evidence, sight))
    if waited > evidence.patience(max(each.ttl for each in asked)):
        return f"{sight.holder}, which had given no sign for {sight.at - sign:.3f} s"
    return ""


def idleness(evidence: Evidence, sight: Sight, bodies: Mapping[Whose, Body], since: float) -> str:
    """Why the holder does nothing but renew, and has done so *since* for too long. Empty if it may."""
    keeps = [each for each in asked_before(evidence, sight) if each.may_keep]
    if not keeps:
        return ""
    body = bodies.get((sight.key, sight.holder))
    granted = min((each.answered for each in keeps if each.keeps), default=inf)
    without = body.ended if body else granted
    # Counted up to the renewal, not to the sight: a release that doesn't get through leaves the key for a TTL more.
    if keeps[-1].at - max(without, since) <= evidence.patience(max(each.ttl for each in keeps)):
        return ""
    said = (
        f"{keeps[-1].at - without:.3f} s after its body had ended"
        if body
        else "without ever beginning a body"
    )
    return f"{sight.holder}, which renewed it {said}"


def bodies_of(evidence: Evidence) -> dict[Whose, Body]:
    """The body of each owner that began one."""
    ends = {record["run"]: record.at for record in evidence.of("end")}
    return {
        (start["key"], start["owner"]): Body(start.at, ends.get(start["run"], inf))
        for start in evidence.of("start")
    }


def asked_before(evidence: Evidence, sight: Sight) -> list[Asked]:
    """What the holder had asked about the key by the time it was seen."""
    asked = evidence.by_owner.get((sight.key, sight.holder), ())
    return list(asked[: bisect_left(asked, sight.answered, key=lambda each: each.at)])


def _sign(asked: Asked, sight: Sight) -> float:
    """When the server last heard of the holder by this question, at the latest, as far as it concerns *sight*."""
    if asked.answered == inf:
        return asked.at  # whoever asked was killed before the answer came
    return min(asked.answered, sight.at)


def _calm_since(evidence: Evidence, sight: Sight) -> float:
    """
    Since when the holder's lease has had no reason but its holder to live on: the end of the last fault.

    Where the server's clock had been stepped, a dead holder's lease lives for a TTL after the first one that was
    refused the key.
    """
    calm = evidence.calm_since(sight.answered)
    if not evidence.clock_stepped(0.0, sight.answered):
        return calm
    refused = (
        each.answered
        for each in evidence.by_key.get(sight.key, ())
        if each.answer == "held" and each.at >= calm and each.holder == sight.holder
    )
    return min(refused, default=sight.at)
