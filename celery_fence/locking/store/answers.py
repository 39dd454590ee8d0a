"""What a lease store answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_fence.locking.records import ClaimedElsewhere, Done
from celery_fence.locking.store.questions import Ending, Facts


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
    facts: Facts = field(default_factory=Facts)
    closed: bool = False


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

    @property
    def may_be_our_own_release(self) -> bool:
        """
        Whether the key of a trusted lease is another's by our own release, whose reply was lost.

        The store remembers only the last who released:

            ours      release ... its reply is lost ...                  asked again: superseded
            theirs                                   acquire, release

        While the lease was trusted nobody else was granted the key (G1), so it was freed by
        the first of these, or data were lost in the same moment; and its body is over.
        """
        return self.repeated and self.reason in {"taken", "superseded"}


@dataclass(frozen=True, slots=True)
class Released:
    """
    The key is free, by this owner's release; asked again, the same answer.

    *ended*: another run of the same delivery has ended it meanwhile, and that end stands.
    """

    ended: bool = False


@dataclass(frozen=True, slots=True)
class ForceReleased:
    """The holder is fenced off for good; *holder* is who was, None when the key was free already."""

    holder: Holder | None


@dataclass(frozen=True, slots=True)
class Raised:
    """The lease is its owner's, and the key's next token is above the one that was seen."""


AcquireAnswer = Granted | Held | Ended | DeliveryEnded | Done | ClaimedElsewhere
RenewAnswer = Kept | Gone
ReleaseAnswer = Released | Gone
RaiseAnswer = Raised | Gone
ForceReleaseAnswer = ForceReleased | Held


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
