"""
Idempotency records: what a lease store remembers of work that is to be done once.

A lease limits overlap, a record limits repeats. It belongs to an idempotency key and
has two lives: a *claim*, made by the acquire of the run that is to do the work, and
*done*, made by that run's release once its body has returned. Anything else that a run
comes to (failed, retried, lost, ignored) drops the claim; a run that died leaves it, and
the next holder of the same lock key, whose token is higher, takes it over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from celery_fence.locking.store import Claim, Ending, Facts


@dataclass(frozen=True, slots=True)
class Record:
    """
    What is remembered of one idempotency *key*.

    *owner* claimed it under the lease on *lock_key*, with *token*, at *claimed*; *done*
    is when its body had returned, None for a claim. Both are the store's clock, in
    seconds since the epoch. *value* is the encoded return value, None where none is kept
    or this is one of a list; *size* its bytes. It is kept for *left* seconds more.
    """

    key: str
    lock_key: str
    owner: str
    token: int
    facts: Facts
    claimed: float = 0.0
    done: float | None = None
    value: bytes | None = None
    size: int | None = None
    left: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """The work of this idempotency key has been done: nobody is to do it again, and nothing was granted."""

    record: Record


@dataclass(frozen=True, slots=True)
class ClaimedElsewhere:
    """
    The idempotency key is claimed under another lock key, whose lease this one's can't exclude.

    Nothing was granted. Whether the run that claimed it is still under way, the lease on
    that other key tells. Where the key is the asker's own (only by `Recording.claim_record`),
    a run with a newer token has claimed it, and the asker's lease is over.
    """

    record: Record


@runtime_checkable
class Recording(Protocol):
    """
    An optional power of a store: to keep idempotency records.

    A store that has it heeds `Claim.record` in its acquire and its release.
    """

    def claim_record(self, claim: Claim, token: int) -> Done | ClaimedElsewhere | None:
        """
        Claim the record of *claim* for work under a lease that its owner has already; None once it is claimed.

        What an acquire does besides its grant: one round trip.
        """

    def end_record(self, claim: Claim, token: int, ending: Ending | None) -> None:
        """
        Complete the record of such work, or drop its claim, as a release does; the lease stays: one round trip.

        Not where somebody else has claimed it since.
        """

    def record(self, key: str) -> Record | None:
        """The record of the idempotency *key*, with its value: one round trip, changes nothing."""

    def records(self) -> Iterator[Record]:
        """Every record, claims too, without the values, in no particular order, read in batches."""

    def delete_record(self, key: str, owner: str | None = None) -> Record | None:
        """
        Forget the record of the idempotency *key*; answers what it was, None where there is none.

        With *owner*, only a claim of that owner: one that has been taken over or done
        meanwhile is answered and stays.
        """
