"""When each kind of fault strikes, how, and for how long: drawn from a seed, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

FIRST = 0.5
"""Seconds of load before the first strike."""


@dataclass(frozen=True, slots=True)
class Strike:
    """
    One fault: begins *at* seconds into the load and lasts *lasts* seconds.

    *how* is its variant, *roll* (0 to 1) picks a victim among those that are there.
    """

    at: float
    fault: str
    how: str
    lasts: float
    roll: float


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault's variants with their weights, the pause between two strikes and how long one lasts, the last in TTLs."""

    fault: str
    variants: Mapping[str, int]
    every: tuple[float, float]
    lasts: tuple[float, float] = (0.0, 0.0)


KINDS = {
    kind.fault: kind
    for kind in (
        Kind("F1", {"child": 5, "worker": 1}, (1.0, 3.0)),
        # Beyond the TTL, so that somebody else gets the key; a few shorter ones, so that it is close.
        Kind("F2", {"holder": 12, "main": 1}, (0.4, 1.2), (0.9, 2.2)),
        Kind("F3", {"with its data": 1, "without data": 1}, (3.0, 6.0), (0.0, 1.5)),
        Kind("F4", {"flush": 1, "leases": 2, "counters": 2, "one key": 2}, (0.5, 2.5)),
        Kind("F5", {"scripts": 1}, (0.3, 1.5)),
        Kind(
            "F6",
            {
                "down": 2,
                "drop": 2,
                "requests": 2,
                "replies": 2,
                "half-open": 1,
                "reply to acquire": 4,
                "reply to renew": 4,
                "reply to release": 4,
            },
            (0.4, 1.6),
            (0.2, 2.5),
        ),
        Kind("F7", {"client pause": 2, "sleep": 1, "latency": 3, "jitter": 3}, (1.0, 3.0), (0.2, 2.0)),
        Kind("F9", {"allkeys-lru": 1, "noeviction": 1}, (2.0, 5.0), (0.5, 2.0)),
        Kind("F10", {"forward": 1, "back": 1}, (2.0, 5.0), (0.5, 3.0)),
    )
}


def strikes_of(kind: Kind, dice: Random, ttl: float, seconds: float) -> Iterator[Strike]:
    """
    The strikes of one kind within *seconds*, one after the other.

    A strike may last beyond the next one's begin only where they have different victims, which F2 sees to.
    """
    at = FIRST + dice.uniform(0.0, kind.every[0])
    while at < seconds:
        how = dice.choices(list(kind.variants), list(kind.variants.values()))[0]
        lasts = dice.uniform(*kind.lasts) * ttl
        yield Strike(round(at, 3), kind.fault, how, round(lasts, 3), dice.random())
        at += dice.uniform(*kind.every) + (0.0 if kind.fault == "F2" else lasts)
