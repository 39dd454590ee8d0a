"""From a miss to a decision, by pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from celery_fence.errors import ConfigError
from celery_fence.locking.policies.kinds import (
    NOT_GIVEN,
    DeadLetter,
    Raise,
    Requeue,
    Retry,
    Skip,
    stages,
)

if TYPE_CHECKING:
    from celery_fence.locking.policies.kinds import (
        Policy,
    )
    from celery_fence.locking.store import Holder


@dataclass(frozen=True, slots=True)
class Miss:
    """
    The key was held, or the store out of reach: what a policy decides about.

    *holder* is None when the store was out of reach. *attempt* and *waited* (seconds)
    count the misses of this *stage* before this one, and the time since its first;
    *retries* are Celery's own. *roll* is drawn evenly from [0, 1) by the caller and
    makes the jitter. No decision puts the message off for longer than
    *longest_delay* seconds. *since_last* is the time since the message last missed,
    None for its first miss.
    """

    key: str
    holder: Holder | None
    attempt: int = 0
    waited: float = 0.0
    retries: int = 0
    stage: int = 0
    roll: float = 0.5
    longest_delay: float | None = None
    since_last: float | None = None


@dataclass(frozen=True, slots=True)
class SendLater:
    """Send the message again in *delay* seconds; *stage* and *attempt* go with it for its next miss."""

    delay: float
    stage: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SendToBack:
    """Put the message at the back of its queue, at once or in *delay* seconds; the rest as in `SendLater`."""

    delay: float
    stage: int
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """
    Publish the message to the dead-letter *queue* (None: the one of the settings), then fail.

    *reason* is ``"held"``, ``"max_wait"`` or ``"max_attempts"``; after an outage always ``"store_unavailable"``.
    """

    queue: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class SkipRun:
    """End the message as skipped. *result* counts only with *has_result*; *chain* as in `Skip`."""

    result: Any
    chain: Literal["stop", "continue"]
    has_result: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail with `Contended`; *reason* as in `GiveUp`."""

    reason: str


Decision = SendLater | SendToBack | GiveUp | SkipRun | Fail

PACE = 1.0
"""A requeued message that misses again within this many seconds waits once to twice as long."""

NEARLY = 0.01
"""`max_wait` counts as reached with less than this many seconds left, so that no message spins at its end."""


def decide(policy: Policy, miss: Miss) -> Decision:
    """
    What to do with a message after *miss*, by the chain that *policy* starts.

    Pure: the same two values give the same decision. A `Miss.stage` beyond the
    chain (the chain was shortened by a deploy) means its last stage. `ConfigError`
    for the policies that need a later version: `Wait`, `Park`, `Coalesce`.
    """
    chain = stages(policy)
    place = max(0, min(miss.stage, len(chain) - 1))
    reason = "store_unavailable" if miss.holder is None else "held"
    miss = replace(miss, stage=place)
    for stage in chain[place:]:
        spent = _budget_spent(stage, miss)
        if not spent:
            return _act(stage, miss, reason)
        reason = spent if miss.holder is not None else reason
        miss = replace(miss, stage=miss.stage + 1, attempt=0, waited=0.0)
    raise ConfigError(f"The chain of {policy!r} has no end.")


def _budget_spent(stage: Policy, miss: Miss) -> str:
    """Which limit of *stage* this miss has reached: the field's name, or an empty text."""
    if isinstance(stage, Retry | Requeue) and _left(stage, miss) < NEARLY:
        return "max_wait"
    if isinstance(stage, Retry) and stage.max_attempts is not None and miss.attempt >= stage.max_attempts:
        return "max_attempts"
    return ""


def _act(stage: Policy, miss: Miss, reason: str) -> Decision:
    """The decision of one stage whose budget isn't spent."""
    match stage:
        case Retry():
            return SendLater(_retry_delay(stage, miss), miss.stage, miss.attempt + 1)
        case Requeue():
            return SendToBack(_requeue_delay(stage, miss), miss.stage, miss.attempt + 1)
        case DeadLetter():
            return GiveUp(stage.queue, reason)
        case Skip() if miss.retries:
            return _act(Retry(), miss, reason)  # half-done work is never dropped
        case Skip():
            given = stage.result is not NOT_GIVEN
            return SkipRun(stage.result if given else None, stage.chain, given)
        case Raise():
            return Fail(reason)
    raise ConfigError(f"{stage!r} isn't there yet; it comes with a later version. Use Retry() until then.")


def _retry_delay(policy: Retry, miss: Miss) -> float:
    """
    Seconds until the next try: doubling steps with "equal jitter", so never near nothing.

    Half of a step is certain and half is drawn (Brooker, "Exponential Backoff And
    Jitter", 2015). The holder's time left bounds it too: a dead holder's expiry
    isn't slept through.
    """
    step = min(policy.max_delay, policy.min_delay * 2.0 ** min(miss.attempt + 1, 1000))
    low = max(policy.min_delay, step / 2)
    delay = min(step, low + (step - low) * miss.roll)
    if miss.holder is not None and miss.holder.ttl_left is not None:
        expiry = max(miss.holder.ttl_left, policy.min_delay)
        delay = min(delay, expiry * (1 + 0.25 * miss.roll))
    return _capped(delay, policy, miss)


def _requeue_delay(policy: Requeue, miss: Miss) -> float:
    """Nothing, as long as other work keeps the message from coming round within `PACE`."""
    if miss.since_last is None or miss.since_last >= PACE:
        return 0.0
    return _capped(PACE * (1 + miss.roll), policy, miss)


def _capped(delay: float, policy: Retry | Requeue, miss: Miss) -> float:
    """*delay* within what the broker allows and what is left of the policy's `max_wait`."""
    longest = math.inf if miss.longest_delay is None else max(miss.longest_delay, 0.0)
    return min(delay, longest, _left(policy, miss))


def _left(policy: Retry | Requeue, miss: Miss) -> float:
    """Seconds left of `max_wait`; endless without one. A clock that went back doesn't add any."""
    return math.inf if policy.max_wait is None else policy.max_wait - max(miss.waited, 0.0)
