"""
What becomes of a message whose key is held.

A policy is a frozen value. [`decide`][celery_fence.locking.policies.decide] turns
a policy and a [`Miss`][celery_fence.locking.policies.Miss] into a decision and does
nothing else: no clock, no dice, no network. The Celery layer draws the dice, keeps
the count in the message's headers and carries the decision out.

``then=`` chains policies. A message goes through the *stages* of its chain from left
to right and never back; each stage has its own count and its own clock. All times
are seconds.
"""

from celery_fence.locking.policies.deciding import (
    Decision,
    Fail,
    GiveUp,
    Miss,
    SendLater,
    SendToBack,
    SkipRun,
    decide,
)
from celery_fence.locking.policies.kinds import (
    LATER,
    NAMES,
    NOT_GIVEN,
    Coalesce,
    DeadLetter,
    Park,
    Policy,
    Raise,
    Requeue,
    Retry,
    Skip,
    Wait,
    as_policy,
    policy_named,
    stages,
)

__all__ = [
    "LATER",
    "NAMES",
    "NOT_GIVEN",
    "Coalesce",
    "DeadLetter",
    "Decision",
    "Fail",
    "GiveUp",
    "Miss",
    "Park",
    "Policy",
    "Raise",
    "Requeue",
    "Retry",
    "SendLater",
    "SendToBack",
    "Skip",
    "SkipRun",
    "Wait",
    "as_policy",
    "decide",
    "policy_named",
    "stages",
]
