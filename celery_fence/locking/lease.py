"""A lease: a right on one key, for a while."""

from __future__ import annotations

import enum
import itertools
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from celery_fence.errors import LeaseLost
from celery_fence.locking.events import unheard
from celery_fence.locking.trust import trust_deadline

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.events import Event
    from celery_fence.locking.store import Claim, Granted, Store

HEADER_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
"""What an HTTP header can contain as it is: visible ASCII, but for the sign of an escape."""

REASONS = {
    "taken": "another owner holds the key now",
    "superseded": "a newer token has been issued for the key",
    "force_released": "an operator released it",
    "expired": "it couldn't be renewed in time",
    "max_hold": "it was held for longer than lock_max_hold",
    "released": "it has been released already",
}


class State(enum.Enum):
    """Where a lease is in its life, as its holder knows it."""

    HELD = "held"
    SUSPECT = "suspect"
    """A renewal failed; still trusted, the heartbeat keeps trying."""
    LOST = "lost"
    RELEASED = "released"


class Lease:
    """
    The right to work on *key*, trusted on this process's own clock.

    May be handed to other threads. `check` and `lost` cost no I/O.
    """

    __slots__ = (
        "_clock",
        "_ending",
        "_endings",
        "_given_back",
        "_on_lost",
        "acquired_at",
        "beat_due",
        "claim",
        "emit",
        "failures",
        "lost_reason",
        "max_hold",
        "pid",
        "place",
        "renew_fraction",
        "renewals",
        "since",
        "source",
        "store",
        "token",
        "trusted_until",
    )

    def __init__(
        self,
        claim: Claim,
        granted: Granted,
        *,
        asked_at: float,
        clock: Clock,
        store: Store,
        renewals: Store,
        source: Any,
        renew_fraction: float,
        max_hold: float | None,
        place: object = None,
        on_lost: Callable[[Lease, str], None],
        emit: Callable[[Event], None] = unheard,
    ) -> None:
        self.claim = claim
        self.token = granted.token
        self.since = granted.since
        self.acquired_at = asked_at
        self.store = store
        self.renewals = renewals
        self.source = source
        self.renew_fraction = renew_fraction
        self.max_hold = max_hold
        self.place = place
        self.emit = emit
        self.pid = os.getpid()
        self.lost_reason: str | None = None
        self._ending: State | None = None
        self._given_back = False
        self.failures = 0
        self._clock = clock
        self._on_lost = on_lost
        self._endings = itertools.count()
        self.beat_due = asked_at
        self.trusted_until = 0.0
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
        return 0.0 if self.ended else max(self.trusted_until - self._clock(), 0.0)

    @property
    def held_for(self) -> float:
        """Seconds since the lease was asked for."""
        return self._clock() - self.acquired_at

    @property
    def state(self) -> State:
        """Where the lease is in its life, as far as it was noticed; doesn't look at the clock."""
        return self._ending or (State.SUSPECT if self.failures else State.HELD)

    @property
    def ended(self) -> bool:
        """Whether the lease was released or is known to be lost; doesn't look at the clock."""
        return self._ending is not None

    @property
    def lost(self) -> bool:
        """Whether the lease can't be trusted any longer although it wasn't released. Local clock only."""
        if self._ending is None and self._clock() >= self.trusted_until:
            self.lose(self.reason_of_expiry())
            return True  # also if an earlier `lose` was interrupted half way
        return self._ending is State.LOST

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
        Stop trusting the lease, for good; True for the one call that ended it.

        Not once it is being given back: that the key is another's then is as it should be.
        """
        if self._given_back or next(self._endings) > 0:
            return False
        self.lost_reason = reason
        self._ending = State.LOST
        self._on_lost(self, reason)
        return True

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
        first = next(self._endings) == 0
        if self._ending is None:
            self._ending = State.RELEASED
        return first

    def loss(self) -> LeaseLost:
        """The error that says how this lease ended."""
        reason = self.lost_reason or ("released" if self.ended else self.reason_of_expiry())
        why = REASONS.get(reason, reason)
        return LeaseLost(
            f"The lease on {self.key!r} (token {self.token}) is over: {why}. Stop; write nothing more for this key.",
            key=self.key,
            token=self.token,
            reason=reason,
        )

    def reason_of_expiry(self) -> str:
        """Why trust ends when nobody renews it further."""
        over = self.max_hold is not None and self._clock() >= self.acquired_at + self.max_hold
        return "max_hold" if over else "expired"

    def _trust_from(self, asked_at: float) -> None:
        until = trust_deadline(asked_at, self.ttl)
        if self.max_hold is not None:
            until = min(until, self.acquired_at + self.max_hold)
        self.trusted_until = until

    def __repr__(self) -> str:
        return f"<Lease {self.key!r} token={self.token} {self.state.value}>"


class NullLease:
    """Stands in where a body runs without a lease (outage policy ``run``): `check` passes, the token is None."""

    __slots__ = ("emit", "source")

    key = None
    token = None
    owner = None
    ttl = math.inf
    trusted_for = math.inf
    lost = False

    def __init__(self, source: Any = None, emit: Callable[[Event], None] = unheard) -> None:
        self.source = source
        self.emit = emit

    def check(self) -> None:
        """Pass: there is nothing to lose."""

    def verify(self) -> None:
        """Pass: there is nothing to ask for."""

    def headers(self) -> dict[str, str]:
        """No headers: there is no token."""
        return {}

    def message_headers(self) -> dict[str, Any]:
        """No headers: there is no token."""
        return {}

    def __repr__(self) -> str:
        return "<NullLease>"
