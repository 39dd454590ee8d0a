"""
What a lease store is asked, and what it answers.

A store is a small machine with few questions: acquire, renew, release, force
release, list, and some that are rare. Every answer is a frozen value: contention and loss are answers,
not exceptions. Only breakage raises, and always as
[`StoreUnavailable`][celery_fence.errors.StoreUnavailable] with its cause kept.

Durations are float seconds; a store turns them into integer milliseconds at its
edge. Expiry is judged by the store's own clock, never by the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from celery_fence.locking.records import ClaimedElsewhere, Done


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
    """
    One owner's wish for one key, for *ttl* seconds.

    *delivery* is the delivery that asks, *message* what it is a delivery of (the
    same for its retries and copies); an empty *delivery* remembers nothing.
    *if_held* is what the asker will do for good if somebody else holds the key
    (``"skipped"``, ``"dead_lettered"``, ``"raised"``), empty if it comes back. An
    ended delivery is remembered for *retention* seconds. After the lease expired
    without a release, the key stays closed for *lost_delay* seconds. *record* is the
    idempotency key of work that is to be done once, empty for other work; what is known
    of it is kept for *record_retention* seconds.
    """

    key: str
    owner: str
    ttl: float
    facts: Facts = Facts()
    delivery: str = ""
    message: str = ""
    if_held: str = ""
    retention: float = 3600.0
    lost_delay: float = 0.0
    record: str = ""
    record_retention: float = 86400.0


@dataclass(frozen=True, slots=True)
class Holder:
    """
    Who has a key, as the store sees it.

    *ttl_left* is in seconds, or None for a lease that never expires (made by
    hand: celery-fence makes none). *since* is the store's wall clock, in
    seconds since the epoch, at which the token was granted; *beat_age* the
    seconds since the lease was granted or last renewed. *closed*: nobody works,
    the lease expired and its lost delay isn't over; *ttl_left* says how long.
    """

    key: str
    owner: str
    token: int
    ttl_left: float | None
    since: float = 0.0
    beat_age: float = 0.0
    facts: Facts = Facts()
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """
    How a delivery ended, and what is needed to complete what follows from it.

    *how* is one of ``"returned"``, ``"failed"``, ``"retried"``, ``"replaced"``,
    ``"ignored"``, ``"rejected"`` (the body ended so), ``"skipped"``,
    ``"dead_lettered"``, ``"raised"`` (a terminal decision on a miss). *value* is
    the encoded return value, kept until the epilogue is noted. *result* is the same, for
    the idempotency record, which a body that returned completes; without it the record
    says only that the work was done.
    """

    how: str
    value: bytes | None = None
    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """The epilogue of a delivery (result, links, next chain step, chord part) is complete."""

    key: str
    delivery: str
    how: str
    retention: float


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
    token was issued since; nobody may have the key now), ``"force_released"`` or
    ``"expired"`` (the key is closed for its lost delay). *ended*: a copy of the
    same delivery has finished it meanwhile. *repeated*, of a release: the store had to be
    asked more than once, and may have carried it out before somebody else came.
    """

    reason: str
    holder: Holder | None = None
    ended: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """The key is free, by this owner's release; asked again, the same answer."""


@dataclass(frozen=True, slots=True)
class ForceReleased:
    """The holder is fenced off for good; *holder* is who was, None when the key was free already."""

    holder: Holder | None


@dataclass(frozen=True, slots=True)
class DeliveryEnded:
    """
    This very delivery has ended before: its body must not run again.

    *noted*: so has its epilogue. *age* is the time since it ended in seconds, by
    the store's clock; *holder* who held the key, where the end was a decision on a miss.
    """

    ending: Ending
    noted: bool
    age: float
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The lease is its owner's, and the key's next token is above the one that was seen."""


AcquireAnswer = Granted | Held | Ended | DeliveryEnded | Done | ClaimedElsewhere
RenewAnswer = Kept | Gone
ReleaseAnswer = Released | Gone
RaiseAnswer = Raised | Gone
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
        lease expired, a new token; after its release, `Ended`. A delivery that has
        ended is answered with `DeliveryEnded`. A terminal decision (`Claim.if_held`)
        is remembered in the same step, unless the holder works on the same message;
        the owner that made it gets the same `Held` again. With an idempotency key
        (`Claim.record`) the grant claims its record; `Done` where it is complete, whoever
        has the key; `ClaimedElsewhere` where it is claimed under another key.
        """

    def renew(self, renewals: Sequence[Renewal]) -> list[RenewAnswer]:
        """
        Set the time left of many leases back to their TTL; one answer each, in order.

        Ask only while the lease is trusted: a lease that vanished (flush,
        restart, eviction) is put back with its old token when nobody holds the
        key and no newer token was issued. So is one in whose place the lease of another
        owner with a smaller token is found: data of an earlier moment have come back.
        """

    def release(self, claim: Claim, token: int, ending: Ending | None = None) -> ReleaseAnswer:
        """
        Free the key if it is still this owner's, and remember how the delivery ended.

        Also in the place of another owner's lease with a smaller token, as in `renew`.
        `Gone` otherwise, and the key isn't touched; the ending is still remembered,
        unless a copy of the same delivery holds the key or has ended it. Asked again,
        the same answer. With *token* 0, which is none, an owner gives back what it may have been
        granted, or may be yet: where the key is free, a question of its own that is still
        under way is answered with `Ended`. In the same step an idempotency record is completed where the
        body returned, and its claim is dropped where it didn't; after `Gone` only a claim
        that nobody has taken over since.
        """

    def note(self, notes: Sequence[Note]) -> None:
        """
        Remember that epilogues are complete, and drop the values kept for them: one round trip.

        Of a delivery whose end wasn't remembered yet, remember it now.
        """

    def force_release(self, key: str, owner: str | None = None) -> ForceReleaseAnswer:
        """
        Free the key whoever has it, and fence that holder off for good.

        With *owner*, only if it is still the holder, else `Held` by the other one.
        The next token is higher, and the old holder's renewal is `Gone`.
        """

    def raise_counter(self, claim: Claim, token: int, seen: int) -> RaiseAnswer:
        """
        Make the key's next token greater than *seen*, if the key is this owner's, with *token*; `Gone` otherwise.

        For a holder whose token was refused as stale although it is the newest: once the
        tokens of this key ran ahead of the store's clock. One round trip; safe to repeat.
        """

    def holder(self, key: str) -> Holder | None:
        """Who has the key at this moment: advice, not a lock."""

    def leases(self) -> Iterator[Holder]:
        """Every live lease, in no particular order, read in batches."""

    def for_heartbeat(self) -> Store:
        """The same leases through a connection of its own, to be used by one thread only."""

    def close(self) -> None:
        """Close connections; the store may be used again and reconnects."""


@dataclass(frozen=True, slots=True)
class History:
    """
    What a store remembers of a key besides its lease, for its retention time.

    *token* is the last one issued, 0 when nothing is remembered. The moments are
    the store's wall clock, in seconds since the epoch, or None: when the key was
    last granted, released by its holder, and force released. A grant is dated by
    its token, so it is too late by as much as tokens have once run ahead of the clock.
    """

    token: int = 0
    granted: float | None = None
    released: float | None = None
    force_released: float | None = None


@runtime_checkable
class Inspectable(Protocol):
    """An optional power of a store: to tell what happened to a key before. For people, never for decisions."""

    def history(self, key: str) -> History:
        """What is remembered of *key*: one round trip, changes nothing."""


@runtime_checkable
class Checkable(Protocol):
    """An optional power of a store: to be asked, before it is relied upon, whether leases can live there."""

    def check(self) -> list[str]:
        """
        What speaks against it, a sentence each; leaves nothing behind in the store.

        Raises:
            StoreUnavailable: they can't live there as it is now; the message says
                what is missing.

        """
