"""
I6, after the heal: within the TTL, the lost delay and 1 s of the last fault's end every key makes progress.

It is asked of the key, at the store. A message that waits for longer may have its own reasons: its retry's delay, the
broker's visibility timeout, a worker with other things to do. So, from that bound on:

- Whoever asks for a key is granted it, or is refused for the sake of a holder that works: it renews (which
  `rig.checkers.liveness` asks of every miss), and doesn't go on doing so for longer than the same bound before its
  body begins, or after it has ended.
- The same holds of each lease that the driver sees in the server while the round drains, whether or not anybody asks
  for its key; and none has more left than its TTL and its lost delay.
- When everything has ended, the driver asks for every key, as a task would, and is granted each. The workers still
  run then: a heartbeat that goes on for nothing is found.

Where the server's clock had been stepped, a dead holder's lease lives for a TTL after somebody asks for its key, as the
guarantees say; it needn't be asked for before the driver does. Can't see whether a body that goes on makes progress.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from rig.checkers.evidence import Evidence
from rig.checkers.holder import Body, Sight, Whose, bodies_of, idleness, seen, silence
from rig.checkers.violation import Violation


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each holder that keeps a key after the bound, and doesn't work on it; each key that can't be had at the end."""
    told: set[Whose] = set()
    for sight, why in itertools.chain(_refusals(evidence), _looks(evidence)):
        if why and (sight.key, sight.holder) not in told:
            told.add((sight.key, sight.holder))
            text = f"{sight.key!r} was held, after the heal, by {why}"
            yield Violation("I6", text, sight.answered, {"sight": sight})
    for probe in evidence.of("probed"):
        for key, holder in probe["refused"].items():
            text = f"everything has ended, and {key!r} can't be had: it is held by {holder}"
            yield Violation("I6", text, probe.at, {"key": key, "holder": holder})


def _refusals(evidence: Evidence) -> Iterator[tuple[Sight, str]]:
    since, bodies = evidence.healed, bodies_of(evidence)
    for miss in evidence.asked:
        if miss.answer == "held" and miss.holder and miss.at > since:
            yield seen(miss), idleness(evidence, seen(miss), bodies, since)


def _looks(evidence: Evidence) -> Iterator[tuple[Sight, str]]:
    bodies = bodies_of(evidence)
    for look in evidence.of("leases"):
        for lease in look["leases"]:
            sight = Sight(lease["key"], lease["owner"], look.at, look["until"])
            yield sight, _why_wrong(evidence, sight, lease, bodies)


def _why_wrong(
    evidence: Evidence, sight: Sight, lease: Mapping[str, Any], bodies: Mapping[Whose, Body]
) -> str:
    longest = lease["ttl"] + lease["lost_delay"]
    if lease["left"] <= longest:
        return silence(evidence, sight) or idleness(evidence, sight, bodies, evidence.healed)
    if evidence.clock_stepped(0.0, sight.answered):
        return ""
    return (
        f"{sight.holder} for {lease['left']:.3f} s more, and no lease of its lives longer than {longest:g} s"
    )
