"""
What happened, as values.

The code below emits events and knows nobody who listens; observers turn them into
signals, log lines, metrics and spans. An observer that fails is logged and the
lease goes on. Every event has a *source* (the task, or the app for a bare
`hold`) and the *key* it is about; durations are seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.null_lease import NullLease
    from celery_fence.locking.store import Holder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to *key*, on behalf of *source*."""

    source: Any
    key: str


@dataclass(frozen=True, slots=True)
class Acquired(Event):
    """A lease was granted; *waited* seconds after the work first asked for it."""

    lease: Lease
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Missed(Event):
    """The key was held by *holder* (None: the store was out of reach, as *error* says) and *outcome* was decided."""

    holder: Holder | None
    task_id: str
    outcome: str
    delay: float | None
    attempt: int
    waited: float
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """The heartbeat renewed the lease, *lag* seconds after it was due and *failures* tries that failed."""

    lease: Lease
    lag: float
    reinstated: bool = False
    failures: int = 0


@dataclass(frozen=True, slots=True)
class RenewalFailed(Event):
    """The store didn't answer a renewal, for the *attempt*-th time on end; trusted for *trusted_for* seconds more."""

    lease: Lease
    error: Exception
    trusted_for: float
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The lease can't be trusted any longer: *reason* says why."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class ReleasedLease(Event):
    """The lease was given back, or couldn't be yet (*outcome*: released, gone or unreachable)."""

    lease: Lease
    outcome: str
    held_for: float
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ReleasedLate(Event):
    """
    A lease that couldn't be released at the end of its run was given back *late* seconds after it.

    Its end is remembered since then. *outcome* is released, or gone: another had the key by then.
    """

    lease: Lease
    outcome: str
    late: float


@dataclass(frozen=True, slots=True)
class Skipped(Event):
    """
    A message ended without its body; *record* is what was stored as its result.

    *reason* is ``"held"``: *holder* does the work; ``"store_unavailable"``; or
    ``"already_done"``: the work was done before, and *record* is its result.
    """

    holder: Holder | None
    task_id: str
    record: Any
    reason: str = "held"


@dataclass(frozen=True, slots=True)
class CounterRaised(Event):
    """
    A token was refused as stale although its lease holds: the tokens of this key once ran ahead of the store's clock.

    *seen* is the token that was seen before, and from now on the key's next token is above it.
    """

    lease: Lease
    task_id: str
    seen: int
    scope: str | None


@dataclass(frozen=True, slots=True)
class DeadLetteredMessage(Event):
    """A message was given up and published to *queue*."""

    holder: Holder | None
    task_id: str
    queue: str
    reason: str
    attempts: int
    waited: float


@dataclass(frozen=True, slots=True)
class PutOff(Event):
    """
    A copy was put off for *delay* seconds.

    Its message is running (*holder*), has ended and may still be in its epilogue (no
    holder), or it is a retry that overtook its predecessor.
    """

    holder: Holder | None
    task_id: str
    delay: float


@dataclass(frozen=True, slots=True)
class CopyEnded(Event):
    """A copy of a message that had ended (*how*, *age* seconds before) was ended without running."""

    task_id: str
    how: str
    age: float


@dataclass(frozen=True, slots=True)
class RanUnfenced(Event):
    """The store was out of reach and the outage policy let the body run without a lease."""

    task_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class StillWaiting(Event):
    """A message without a limit has waited for another full hour."""

    holder: Holder | None
    task_id: str
    waited: float


@dataclass(frozen=True, slots=True)
class StaleWriteRefused(Event):
    """
    A guarded write was stale, or had no token, and was refused; not *refused*: it was let pass.

    *what* was attempted, such as ``UPDATE payouts``, with *token* of *owner*, in
    *scope*, where *seen* of *seen_owner* was there before (None: not known, or the
    write had no token to compare).
    """

    lease: Lease | NullLease | None
    scope: str
    token: int | None
    owner: str | None
    seen: int | None
    seen_owner: str | None
    what: str
    refused: bool = True

    @property
    def line(self) -> str:
        """What the log says of it, also where there is no app with observers."""
        done = "Refused" if self.refused else "Let pass, and would have refused,"
        shown = "no token" if self.token is None else f"token {self.token}"
        seen = "" if self.seen is None else f", where token {self.seen} has been seen"
        return f"{done} {self.what} with {shown} for {self.scope!r} on behalf of {self.key!r}{seen}"


def unheard(event: Event) -> None:
    """Tell nobody: what emits for a lease that no app has taken."""


def worth_a_line(attempt: int) -> bool:
    """Whether the *attempt*-th failure on end is told aloud: the first, second, fourth, eighth, and so on."""
    return attempt & (attempt - 1) == 0


Observer = Callable[[Event], None]


class Emitter:
    """Tells every observer about an event, whatever the others do."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._failed: set[int] = set()

    def __call__(self, event: Event) -> None:
        """Tell all observers; one that raises is logged once at error level and asked again next time."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception:  # an observer must never break a lease
                if id(observer) not in self._failed:
                    self._failed.add(id(observer))
                    logger.exception("Observer %r failed; its further failures are not logged", observer)
