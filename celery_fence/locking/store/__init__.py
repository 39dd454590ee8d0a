"""
What a lease store is asked, and what it answers.

A store is a small machine with few questions: acquire, renew, release, force
release, list, and some that are rare. Every answer is a frozen value: contention and loss are answers,
not exceptions. Only breakage raises, and always as
[`StoreUnavailable`][celery_fence.errors.StoreUnavailable] with its cause kept.

Durations are float seconds; a store turns them into integer milliseconds at its
edge. Expiry is judged by the store's own clock, never by the caller's.
"""

from celery_fence.locking.store.answers import (
    AcquireAnswer,
    DeliveryEnded,
    Ended,
    ForceReleaseAnswer,
    ForceReleased,
    Gone,
    Granted,
    Held,
    History,
    Holder,
    Kept,
    RaiseAnswer,
    Raised,
    ReleaseAnswer,
    Released,
    RenewAnswer,
)
from celery_fence.locking.store.protocol import Checkable, Inspectable, Store
from celery_fence.locking.store.questions import Claim, Ending, Facts, Note, Renewal

__all__ = [
    "AcquireAnswer",
    "Checkable",
    "Claim",
    "DeliveryEnded",
    "Ended",
    "Ending",
    "Facts",
    "ForceReleaseAnswer",
    "ForceReleased",
    "Gone",
    "Granted",
    "Held",
    "History",
    "Holder",
    "Inspectable",
    "Kept",
    "Note",
    "RaiseAnswer",
    "Raised",
    "ReleaseAnswer",
    "Released",
    "RenewAnswer",
    "Renewal",
    "Store",
]
