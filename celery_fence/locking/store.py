"""
What a lease store is asked, and what it answers.

A store is a small machine with five questions: acquire, renew, release, force
release, list. Every answer is a frozen value: contention and loss are answers,
not exceptions. Only breakage raises, and always as
[`StoreUnavailable`][celery_fence.errors.StoreUnavailable] with its cause kept.

Durations are float seconds; a store turns them into integer milliseconds at its
edge. Expiry is judged by the store's own clock, never by the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Facts:
    """Who is asking, for people and for telling twins apart; a store keeps it and never judges by it."""

    task_name: str = ""
    task_id: str = ""
    delivery: str = ""
    retries: int = 0
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """One owner's wish for one key, for *ttl* seconds."""

    key: str
    owner: str
    ttl: float
    facts: Facts = Facts()


@dataclass(frozen=True, slots=True)
class Holder:
    """
    Who has a key, as the store sees it.

    *ttl_left* is in seconds, or None for a lease that never expires (made by
    hand: celery-fence makes none). *since* is the store's wall clock, in
    seconds since the epoch, at which the token was granted; *beat_age* the
    seconds since the lease was granted or last renewed.
    """

    key: str
    owner: str
    token: int
    ttl_left: float | None
    since: float = 0.0
    beat_age: float = 0.0
    facts: Facts = Facts()


@dataclass(frozen=True, slots=True)
class Granted:
    """The key is the owner's. Asked again by the same owner: the same token and *since*, the full TTL again."""

    token: int
    since: float


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else has the key."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class Ended:
    """This owner has already released the key: a late copy of its question is not granted anything."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """A holder's wish to keep what *claim* was granted: the same *token* for another full TTL."""

    claim: Claim
    token: int
    since: float


@dataclass(frozen=True, slots=True)
class Kept:
    """Still the owner's. *reinstated*: the lease had vanished from the store and was put back."""

    reinstated: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """
    No longer the owner's, for good.

    *reason* is ``"taken"`` (*holder* has it now), ``"superseded"`` (a newer
    token was issued since; nobody may have the key now) or
    ``"force_released"``.
    """

    reason: str
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The key is free, by this owner's release; asked again, the same answer."""


@dataclass(frozen=True, slots=True)
class ForceReleased:
    """The holder is fenced off for good; *holder* is who was, None when the key was free already."""

    holder: Holder | None


AcquireAnswer = Granted | Held | Ended
RenewAnswer = Kept | Gone
ReleaseAnswer = Released | Gone
ForceReleaseAnswer = ForceReleased | Held


class Store(Protocol):
    """Where leases live. Safe to share between threads and greenlets, and to use after a fork."""

    @property
    def description(self) -> str:
        """The store's URL without its password, for people."""

    def acquire(self, claim: Claim) -> AcquireAnswer:
        """
        Take the key if nobody has it, in one atomic step and one round trip.

        The token is greater than every earlier one of this key. Safe to repeat
        when the reply was lost: the same owner gets the same grant; after its
        lease expired, a new token; after its release, `Ended`.
        """

    def renew(self, renewals: Sequence[Renewal]) -> list[RenewAnswer]:
        """
        Set the time left of many leases back to their TTL; one answer each, in order.

        Ask only while the lease is trusted: a lease that vanished (flush,
        restart, eviction) is put back with its old token when nobody holds the
        key and no newer token was issued.
        """

    def release(self, claim: Claim, token: int) -> ReleaseAnswer:
        """Free the key if it is still this owner's; `Gone` otherwise, and nothing is touched."""

    def force_release(self, key: str, owner: str | None = None) -> ForceReleaseAnswer:
        """
        Free the key whoever has it, and fence that holder off for good.

        With *owner*, only if it is still the holder, else `Held` by the other one.
        The next token is higher, and the old holder's renewal is `Gone`.
        """

    def holder(self, key: str) -> Holder | None:
        """Who has the key at this moment: advice, not a lock."""

    def leases(self) -> Iterator[Holder]:
        """Every live lease, in no particular order, read in batches."""

    def for_heartbeat(self) -> Store:
        """The same leases through a connection of its own, to be used by one thread only."""

    def close(self) -> None:
        """Close connections; the store may be used again and reconnects."""
