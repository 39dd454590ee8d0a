"""How long a holder may trust a lease without asking again. Pure arithmetic, in seconds."""

from __future__ import annotations


def margin(ttl: float) -> float:
    """The part of *ttl* that is never trusted: 5 %, at least 0.1 s, for the drift between two clocks."""
    return max(0.05 * ttl, 0.1)


def trust_deadline(asked_at: float, ttl: float) -> float:
    """
    When to stop trusting a lease that was asked for at *asked_at*.

    Counts from the question, not the answer: a slow reply must shorten the
    time we trust, never lengthen it.
    """
    return asked_at + max(ttl - margin(ttl), 0.0)


def renewal_due(asked_at: float, ttl: float, fraction: float, roll: float) -> float:
    """
    When to renew a lease that was last asked for at *asked_at*.

    After *fraction* of the TTL, up to a tenth of that sooner by *roll* (0 to 1),
    so that the leases of many processes don't beat in step.
    """
    return asked_at + ttl * fraction * (1.0 - 0.1 * roll)


def enough_trust_left(now: float, trusted_until: float, ttl: float) -> bool:
    """Whether a grant whose reply took its time is still worth entering a body with: half its trust is left."""
    return trusted_until - now >= 0.5 * (ttl - margin(ttl))
