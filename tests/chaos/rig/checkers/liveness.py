"""
I6, liveness: a key is held by somebody who works on it, or it opens.

Asked of every miss: its holder asked for the key itself and was granted it; has given a sign (asked for the key, or for
a renewal, and not been told that it is gone) within the TTL, the lost delay and 1 s; and hasn't been renewed for longer
than that after its body ended. What has to be so after the last fault is asked in `rig.checkers.progress`. Waiting ends
where the messages do: that all of them got through is I4's drain.

Counted from the end of the last fault, and not asked while there is one: a request that was cut off may still arrive
and be granted to somebody who has gone, until its TTL is over. What was told of a miss, or ended, isn't reported
where there was a fault since. An owner that is told of itself is reported always. Can't see a key nobody asks for;
what is left of those, I11 counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rig.checkers.evidence import Asked, Evidence
from rig.checkers.holder import asked_before, seen, silence
from rig.checkers.violation import Violation

REFUSALS = frozenset({"held", "ended", "delivery_ended"})


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each miss because of a holder that isn't there, and each lease that outlived its run."""
    for miss in evidence.asked:
        if miss.answer == "held" and miss.holder:
            why = _why_wrong(evidence, miss)
            if why:
                yield _violation(miss, why)
    yield from _outlived(evidence)


def _why_wrong(evidence: Evidence, miss: Asked) -> str:
    if miss.holder == miss.owner:
        # One that was too slow may find its own lease expired, and the key closed for the lost delay.
        return "itself" if miss.answered - miss.at < miss.ttl else ""
    before = asked_before(evidence, seen(miss))
    if before and _told_no(before, miss.at) and evidence.quiet(before[0].at, miss.answered):
        return f"{miss.holder}, which had been told that it isn't"
    return silence(evidence, seen(miss))


def _told_no(asked: Sequence[Asked], moment: float) -> bool:
    """Whether every question was answered before *moment*, and each with a refusal."""
    return all(each.answer in REFUSALS and each.answered < moment for each in asked)


def _outlived(evidence: Evidence) -> Iterator[Violation]:
    owners = {record["run"]: (record["key"], record["owner"]) for record in evidence.of("start")}
    for end in evidence.of("end"):
        asked = evidence.by_owner.get(owners.get(end["run"], ("", "")), ())
        for each in asked:
            late = each.at - end.at
            if each.keeps and late > evidence.patience(each.ttl) and evidence.quiet(end.at, each.answered):
                text = f"the lease of {each.owner} on {each.key!r} was renewed {late:.3f} s after its body had ended"
                yield Violation("I6", text, each.answered, {"end": end, "renewed": each})
                break


def _violation(miss: Asked, why: str) -> Violation:
    text = f"{miss.owner} was told that {miss.key!r} is held by {why}"
    return Violation("I6", text, miss.answered, {"miss": miss})
