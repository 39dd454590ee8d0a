"""The questions themselves, and the powers that a store may have besides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from celery_fence.locking.store.answers import (
        AcquireAnswer,
        ForceReleaseAnswer,
        History,
        Holder,
        RaiseAnswer,
        ReleaseAnswer,
        RenewAnswer,
    )
    from celery_fence.locking.store.questions import Claim, Ending, Note, Renewal


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
