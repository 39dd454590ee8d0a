"""
I11, bounded state: after the drain the lease server has nothing left but what expires, and then nothing.

Asked of the driver's look at the server once the workers are gone: no lease, no key without an expiry, none that
stays longer than the retention, nothing that isn't celery-fence's and wasn't there before. And of its look after
the retention: as many keys of each kind as before the run. Leases are asked for only when a TTL, the lost delay
and 1 s have passed since the drain: one of a killed worker may live that long. Can't see what is left in the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from rig.checkers.evidence import Evidence
from rig.checkers.violation import Violation
from rig.history import Record

KINDS = ("leases", "counters", "markers", "indexes", "others")


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each kind of key that stays."""
    looks = {record["moment"]: record for record in evidence.of("keys")}
    before, after, later = (looks.get(moment) for moment in ("before", "after", "later"))
    if after is not None:
        yield from _after(evidence, after, before)
    if later is not None:
        for kind in KINDS:
            left, had = _count(later, kind), _count(before, kind)
            if left > had:
                yield _violation(later, f"{left} {kind} after the retention, {had} before the run")


def _after(evidence: Evidence, after: Record, before: Record | None) -> Iterator[Violation]:
    drained = max((record.at for record in evidence.of("drained")), default=after.at)
    ttl = float(evidence.setting("ttl", 0.0))
    if after.at - drained >= evidence.patience(ttl) and _count(after, "leases"):
        yield _violation(after, f"{_count(after, 'leases')} leases are left after the drain")
    if _count(after, "others") > _count(before, "others"):
        yield _violation(after, f"{_count(after, 'others')} keys that no layout knows")
    if after.get("without_expiry"):
        yield _violation(after, f"keys without an expiry: {', '.join(map(str, after['without_expiry'][:5]))}")
    longest, retention = after.get("longest_expiry"), evidence.setting("retention", None)
    if (
        longest is not None
        and retention is not None
        and longest > retention + evidence.steps_before(after.at)
    ):
        yield _violation(after, f"a key stays for {longest:.1f} s, the retention is {retention:g} s")


def _count(look: Record | None, kind: str) -> int:
    """How many of a *kind* there were; none where nobody looked."""
    found: int | Collection[Any] = (look.get(kind) if look else None) or 0
    return found if isinstance(found, int) else len(found)


def _violation(look: Record, text: str) -> Violation:
    return Violation("I11", text, look.at, dict(look.facts))
