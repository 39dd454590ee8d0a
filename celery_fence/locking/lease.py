"""A lease: a right on one key, for a while."""

from __future__ import annotations

import enum
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from celery_fence.locking.events import unheard
from celery_fence.locking.green import call
from celery_fence.locking.loss import Loss, loss_error
from celery_fence.locking.trust import trust_deadline

if TYPE_CHECKING:
    from celery_fence.errors import LeaseLost
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.events import Event
    from celery_fence.locking.green import Tell
    from celery_fence.locking.store import Claim, Granted, Store

HEADER_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
"""What an HTTP header can contain as it is: visible ASCII, but for the sign of an escape."""

END = "end"


class State(enum.Enum):
    """Where a lease is in its life, as its holder knows it."""

    HELD = "held"
    SUSPECT = "suspect"
    """A renewal failed; still trusted, the heartbeat keeps trying."""
    LOST = "lost"
    RELEASED = "released"


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """
    The right to work on *key*, trusted on this process's own clock.

    May be handed to other threads. `check` and `lost` cost no I/O. Each of *on_lost* is called with
    the lease and the reason of its loss, by way of *teller*.
    """

    claim: Claim
    granted: InitVar[Granted]
    _: KW_ONLY
    asked_at: InitVar[float]
    clock: Clock
    store: Store
    renewals: Store
    source: Any
    renew_fraction: float
    max_hold: float | None
    place: object = None
    on_lost: Sequence[Callable[[Lease, str], object]] = ()
    teller: Tell = call
    emit: Callable[[Event], None] = unheard
    token: int = field(init=False)
    since: float = field(init=False)
    pid: int = field(init=False, default_factory=os.getpid)
    acquired_at: float = field(init=False)
    trusted_until: float = field(init=False)
    beat_due: float = field(init=False)
    failures: int = field(init=False, default=0)
    _end: dict[str, object] = field(init=False, default_factory=dict)
    """Written once, in one step: whose word it is has ended the lease."""
    _gone: str | None = field(init=False, default=None)
    _given_back: bool = field(init=False, default=False)

    def __post_init__(self, granted: Granted, asked_at: float) -> None:
        self.token, self.since = granted.token, granted.since
        self.acquired_at = self.beat_due = asked_at
        self._trust_from(asked_at)

    @property
    def key(self) -> str:
        """The rendered business key."""
        return self.claim.key

    @property
    def owner(self) -> str:
        """The id of the execution that holds the lease, new for each one."""
        return self.claim.owner

    @property
    def ttl(self) -> float:
        """Seconds the lease lives in the store without renewal."""
        return self.claim.ttl

    @property
    def trusted_for(self) -> float:
        """Seconds for which the lease may still be trusted without another renewal; 0 when lost or released."""
        return 0.0 if self.ended else max(self.trusted_until - self.clock(), 0.0)

    @property
    def held_for(self) -> float:
        """Seconds since the lease was asked for."""
        return self.clock() - self.acquired_at

    @property
    def state(self) -> State:
        """Where the lease is in its life, as far as it was noticed; doesn't look at the clock."""
        if self.ended:
            return State.LOST if self._loss else State.RELEASED
        return State.SUSPECT if self.failures else State.HELD

    @property
    def ended(self) -> bool:
        """Whether the lease was released or is known to be lost; doesn't look at the clock."""
        return END in self._end

    @property
    def lost(self) -> bool:
        """Whether the lease can't be trusted any longer although it wasn't released. Local clock only."""
        if not self.ended and self.clock() >= self.trusted_until:
            self.lose(self.reason_of_expiry())
            return True  # also while it is being given back
        return self._loss is not None

    @property
    def lost_reason(self) -> str | None:
        """Why it was lost, one of `REASONS`, as noticed on the way or told by the answer to its release; or None."""
        return self._gone if self._loss is None else self._loss.reason

    def check(self) -> None:
        """
        Go on only while the lease is trusted. Local clock only, no I/O.

        Raises:
            LeaseLost: it was lost or has been released; stop working on the key.

        """
        if self.lost or self.ended:
            raise self.loss()

    def verify(self) -> None:
        """
        Ask the store whether the key is still this owner's: one round trip.

        Raises:
            LeaseLost: it isn't, whatever the local clock says.
            StoreUnavailable: the store didn't answer.

        """
        self.check()
        holder = self.store.holder(self.key)
        if holder is None or holder.owner != self.owner:
            self.lose("superseded" if holder is None else "taken")
            raise self.loss()

    def headers(self) -> dict[str, str]:
        """
        HTTP headers that carry the fencing token to a service which checks it.

        What a header can't contain is percent-escaped in the scope, and so is a percent sign.
        """
        scope = quote(self.key, safe=HEADER_SAFE, errors="surrogatepass")
        return {"X-Fencing-Token": str(self.token), "X-Fencing-Scope": scope}

    def message_headers(self) -> dict[str, Any]:
        """Headers that carry the fencing token in a Celery or kombu message, for a consumer which checks it."""
        return {"fencing_token": self.token, "fencing_scope": self.key, "fencing_owner": self.owner}

    def renewed(self, asked_at: float) -> bool:
        """
        Trust the lease for another TTL, counted from *asked_at*; False when it has ended meanwhile.

        An end that another thread notes during this call stays: renewal never undoes it.
        """
        self._trust_from(asked_at)
        self.failures = 0
        return not self.ended

    def suspect(self) -> None:
        """A renewal failed: still trusted until the deadline, but no longer sure."""
        self.failures += 1

    def lose(self, reason: str) -> bool:
        """
        Stop trusting the lease, for good, and tell of it; True for the one call that ended it.

        Not once it is being given back: that the key is another's then is as it should be.
        """
        if self._given_back:
            return False
        loss = Loss(reason, [functools.partial(step, self, reason) for step in self.on_lost])
        if self._end.setdefault(END, loss) is not loss:
            return False
        self.tell()
        return True

    def tell(self) -> bool:
        """Tell what is left to be told of a loss, if nobody is at it; False while there is something left."""
        loss = self._loss
        if loss is None or loss.told:
            return True
        self.teller(loss.tell)
        return loss.told

    def give_back(self) -> bool:
        """
        Note that its release is about to be asked for; whether it was trusted up to here, and its body with it.

        Then only the answer to the release can tell of a loss, and not what is heard or isn't
        heard of the key in the meantime:

            ours      release ... no answer yet       renewal: taken
            theirs               acquire: granted
        """
        self._given_back = self._given_back or not (self.lost or self.ended)
        return self._given_back

    def end(self) -> bool:
        """Note that the lease is being released; False when it was lost or released before."""
        release = object()
        return self._end.setdefault(END, release) is release

    def found_gone(self, reason: str) -> None:
        """Its release was answered that it was lost before, for *reason*."""
        self._gone = reason

    def loss(self) -> LeaseLost:
        """The error that says how this lease ended."""
        reason = self.lost_reason or ("released" if self.ended else self.reason_of_expiry())
        return loss_error(self.key, self.token, reason)

    def reason_of_expiry(self) -> str:
        """Why trust ends when nobody renews it further."""
        over = self.max_hold is not None and self.clock() >= self.acquired_at + self.max_hold
        return "max_hold" if over else "expired"

    @property
    def _loss(self) -> Loss | None:
        end = self._end.get(END)
        return end if isinstance(end, Loss) else None

    def _trust_from(self, asked_at: float) -> None:
        until = trust_deadline(asked_at, self.ttl)
        if self.max_hold is not None:
            until = min(until, self.acquired_at + self.max_hold)
        self.trusted_until = until

    def __repr__(self) -> str:
        return f"<Lease {self.key!r} token={self.token} {self.state.value}>"
