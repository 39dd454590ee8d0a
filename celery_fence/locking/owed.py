"""
What a run owes the store at its end: its release, or the end of its record, that couldn't be had then.

A store that restarts while a run ends would else lose both the end of the delivery and the
record of the work, and keep the key closed for what is left of the TTL. So the call is made
again by the heartbeat, at once and then twice a second, for as long as the process lives and anybody
could gain by it; and by whoever asks for the same key here, before that. Whenever it arrives it is
safe: the store's rules for a release that comes too late are the same as for one that was delayed on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery_fence.errors import StoreUnavailable

BREAKS = 3
"""How often in a row the heartbeat may find a call broken before it is given up: once may be a strike from outside."""

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.store import Claim, Ending, Store


LOOK = 0.05
"""Seconds between two looks of who waits for an answer."""


class Owed:
    """
    One call that is due for *key* to the store at *place*, and safe to repeat; worth it *until* then, by *clock*.

    *paid* is called with the answer when it was made, *unpaid* with the last error when it is given up, or the
    process is about to end without it, from whichever thread has tried.
    """

    def __init__(
        self,
        key: str,
        place: object,
        call: Callable[[Store], Any],
        *,
        until: float,
        clock: Clock,
        paid: Callable[[Any], object],
        unpaid: Callable[[Exception], object],
    ) -> None:
        self.key = key
        self.place = place
        self._call = call
        self._until = until
        self._clock = clock
        self._paid = paid
        self._unpaid = unpaid
        self._told = False
        self._breaks = 0
        self._error: Exception = StoreUnavailable("It hasn't been tried again yet.")
        self._answer: Any = None
        self.settled = False

    def pay(self, store: Store) -> None:
        """
        Make the call, or give it up where its time is over; `StoreUnavailable` while it is owed still.

        What else is raised is mostly meant for who pays, such as a soft time limit that strikes an asker
        meanwhile: it is passed on, and the call stays owed.
        """
        if self.settled:
            return  # by another thread, or by one that was struck before it could write that down
        try:
            answer = self._call(store)
        except StoreUnavailable as error:
            self._error, self._breaks = error, 0
            if self._clock() < self._until:
                raise
            self._give_up()
        else:
            self._answer = answer
            first, self.settled = not self.settled, True
            if first:
                self._paid(answer)

    def answer_within(self, seconds: float) -> Any:
        """What the store answers whoever pays; None where nobody has been answered in *seconds*."""
        until = self._clock() + seconds
        while not self.settled and self._clock() < until:
            time.sleep(LOOK)
        return self._answer

    def broke(self, error: Exception) -> None:
        """
        Note that the call raised *error*, which no store should.

        Given up if it does so each time: whatever a store does, it isn't asked for ever.
        """
        self._error = error
        self._breaks += 1
        if self._breaks >= BREAKS:
            self._give_up()

    def tell(self) -> None:
        """Say once that it isn't paid: the process is about to end."""
        if not (self.settled or self._told):
            self._told = True
            self._unpaid(self._error)

    def _give_up(self) -> None:
        self.tell()
        self.settled = True


def worth(claim: Claim, ending: Ending | None) -> float:
    """Seconds for which a release is worth being made: until all that it would change has gone by itself."""
    lasts = [claim.ttl + claim.lost_delay]
    if ending is not None and claim.delivery:
        lasts.append(claim.retention)
    if ending is not None and claim.record:
        lasts.append(claim.record_retention)
    return max(lasts)
