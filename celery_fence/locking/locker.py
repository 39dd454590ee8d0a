"""
Taking and giving back leases, safe at every line.

Whatever interrupts an acquire (a soft time limit strikes at any line), the owner
is known before the store is asked, so the lease can be given back by owner. What an interruption
leaves to be given back is given back in the background: where the store hangs, the time is up already.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_fence.errors import ClaimMismatch, StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.debts import Debts
from celery_fence.locking.green import teller_here
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.lease import Lease
from celery_fence.locking.record_claims import RecordClaims, power
from celery_fence.locking.store import DeliveryEnded, Ended, Ending, Gone, Granted, Held, Note
from celery_fence.locking.trust import enough_trust_left, trust_deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_fence.locking.clock import Clock
    from celery_fence.locking.heartbeat import Heartbeat
    from celery_fence.locking.records import Done
    from celery_fence.locking.store import Claim, ReleaseAnswer, Store


@dataclass(frozen=True, slots=True)
class Terms:
    """How a lease is to be kept: renewal after this part of the TTL, given up after *max_hold* seconds."""

    renew_fraction: float = 1 / 3
    max_hold: float | None = None


class Locker:
    """Asks one store for leases and keeps them alive; *place* tells its leases from those of another store."""

    def __init__(
        self,
        store: Store,
        renewals: Store,
        emit: Callable[[events.Event], None],
        *,
        place: object = None,
        heartbeat: Heartbeat | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self._place = place
        self._renewals = renewals
        self._emit = emit
        self._heartbeat = heartbeat
        self._clock = clock or steady_clock()
        self._debts = Debts(renewals, place, heartbeat=lambda: self.heartbeat, emit=emit, clock=self._clock)
        self._records = RecordClaims(store, self._debts)

    @property
    def heartbeat(self) -> Heartbeat:
        """Who renews the leases."""
        return self._heartbeat or process_heartbeat()

    def acquire(
        self,
        claim: Claim,
        *,
        source: Any,
        terms: Terms,
        into: Callable[[Lease], None],
        waited: float = 0.0,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Lease | Held | DeliveryEnded | Done:
        """
        Take the key, or say who holds it, or that this delivery has ended or its work is done: one round trip.

        *into* is given the lease before it is renewed for the first time, so that
        whoever is interrupted at any line after this can still release it. *on_lost*
        is called once, from whichever thread notices, if the lease is lost before it
        is released; once more only where an exception from outside struck it.

        Raises:
            ClaimMismatch: a run under another lock key is doing the work of this
                idempotency key.
            ConfigError: the store can't keep idempotency records, and this is one's run.
            StoreUnavailable: no confirmed grant, or its reply took so long that too
                little trust is left; the lease is then given back.

        """
        if claim.record:
            power(self.store)
        self._debts.pay_first(claim.key, self.store)
        lease_of = functools.partial(self._lease, claim, source=source, terms=terms, on_lost=on_lost)
        answer = self._take(claim, lease_of, into)
        if isinstance(answer, Lease):
            self._emit(events.Acquired(source, claim.key, answer, waited))
        return answer

    def _take(
        self, claim: Claim, lease_of: Callable[[Granted, float], Lease], into: Callable[[Lease], None]
    ) -> Lease | Held | DeliveryEnded | Done:
        """Ask, and watch the lease; whatever interrupts that, what may have been granted is given back."""
        asked_at = self._clock()
        granted, lease = False, None
        try:
            answer = self._records.acquire(claim)
            granted = isinstance(answer, Granted)
            if not isinstance(answer, Granted):
                return self._miss(claim, answer)
            self._check_speed(claim, asked_at)
            lease = lease_of(answer, asked_at)
            into(lease)
            self.heartbeat.watch(lease, self._emit)
        except BaseException as error:
            if lease is not None:
                self._let_go(lease)
            if granted or not isinstance(error, StoreUnavailable | ClaimMismatch):
                self._debts.give_back(claim, error, self.store)
            raise
        return lease

    def close(self) -> None:
        """Close the connections to the store."""
        self.store.close()
        self._renewals.close()

    def release(
        self, lease: Lease, ending: Ending | None = None, delivery: str = "", *, patience: float = 0.0
    ) -> ReleaseAnswer | None:
        """
        Give the lease back, and remember how *delivery* ended: one round trip.

        None when the store couldn't be reached, nor in *patience* seconds after that: then it is made up
        for in the background, as long as this process lives. Also None in a fork of the process that took
        the lease: it was given a copy of all this, but the work goes on where it began.

        Never raises for a lease that is no longer ours or a store that is gone:
        the run has ended either way, and the TTL bounds what is left. Safe to
        repeat after an interruption.
        """
        if lease.pid != os.getpid():
            return None  # left by sys.exit(), say, through every `finally` of its parent
        claim = _ended(lease.claim, ending, delivery)
        trusted = lease.give_back()
        try:
            answer: ReleaseAnswer = lease.store.release(claim, lease.token, ending)
        except StoreUnavailable as error:
            self._tell_release(lease, "unreachable", error)
            owed = self._debts.owe_release(lease, claim, ending, error)
            late: ReleaseAnswer | None = owed.answer_within(patience)
            return late
        finally:
            # Renewed until the answer is there: whatever delays the release, the key stays ours till then.
            first = self._let_go(lease)
        gone = answer if isinstance(answer, Gone) else None
        if gone and trusted and gone.may_be_our_own_release:
            gone = None
        if first and gone:
            lease.found_gone(gone.reason)
            self._tell_loss(lease, gone.reason)
        self._tell_release(lease, "gone" if gone else "released")
        return answer

    def release_later(self, lease: Lease, ending: Ending | None = None, delivery: str = "") -> None:
        """
        Have the heartbeat give the lease back: `release` was interrupted, and whether the store has heard isn't known.

        Waits for nothing. As for a release that met no store, whatever comes after it is safe.
        """
        if lease.pid != os.getpid():
            return
        self._let_go(lease)
        error = StoreUnavailable("The release was interrupted before the store had answered.")
        self._tell_release(lease, "unreachable", error)
        self._debts.owe_release(lease, _ended(lease.claim, ending, delivery), ending, error)

    def claim_record(self, lease: Lease, claim: Claim) -> Done | None:
        """
        Claim the record of *claim* for work under *lease*, which this execution has already: one round trip.

        `Done` where the work was done before. Raises as `acquire` does, and `LeaseLost` where
        a run with a newer token does the work.
        """
        return self._records.claim(lease, claim)

    def end_record(self, lease: Lease, claim: Claim, ending: Ending | None) -> None:
        """End what `claim_record` began, once: complete the record of a body that returned, else drop the claim."""
        self._records.end(lease, claim, ending)

    def note(self, note: Note) -> None:
        """Remember that an epilogue is complete: in the background, within a second, together with others."""
        self.heartbeat.note(self._renewals, note)

    def note_now(self, note: Note) -> None:
        """Remember the end and the epilogue of a delivery in one round trip; in the background if that fails."""
        try:
            self.store.note([note])
        except StoreUnavailable:
            self.note(note)

    def _miss(self, claim: Claim, answer: Held | Ended | DeliveryEnded | Done) -> Held | DeliveryEnded | Done:
        if isinstance(answer, Ended):
            msg = f"The store says that owner {claim.owner} has released {claim.key!r} already: an owner asks once."
            raise StoreUnavailable(msg)
        return answer

    def _check_speed(self, claim: Claim, asked_at: float) -> None:
        took = self._clock() - asked_at
        if not enough_trust_left(asked_at + took, trust_deadline(asked_at, claim.ttl), claim.ttl):
            msg = (
                f"The store {self.store.description} took {took:.1f} s to grant {claim.key!r}, too long for a TTL of "
                f"{claim.ttl:g} s; the lease was given back. Find out why it is slow, or raise lock_ttl."
            )
            raise StoreUnavailable(msg)

    def _lease(
        self,
        claim: Claim,
        granted: Granted,
        asked_at: float,
        *,
        source: Any,
        terms: Terms,
        on_lost: Callable[[Lease], object] | None,
    ) -> Lease:
        following = () if on_lost is None else (lambda lease, _: on_lost(lease),)
        return Lease(
            claim,
            granted,
            asked_at=asked_at,
            clock=self._clock,
            store=self.store,
            renewals=self._renewals,
            source=source,
            renew_fraction=terms.renew_fraction,
            max_hold=terms.max_hold,
            place=self._place,
            # Forgotten last: until then the heartbeat sees to it that all is told.
            on_lost=(self._tell_loss, *following, self._forget),
            teller=teller_here(),
            emit=self._emit,
        )

    def _let_go(self, lease: Lease) -> bool:
        """End the lease and its renewal; False when it was lost or released before."""
        self.heartbeat.forget(lease)
        return lease.end()

    def _tell_loss(self, lease: Lease, reason: str) -> None:
        self._emit(events.Lost(lease.source, lease.key, lease, reason))

    def _forget(self, lease: Lease, _: str) -> None:
        self.heartbeat.forget(lease)

    def _tell_release(self, lease: Lease, outcome: str, error: Exception | None = None) -> None:
        self._emit(events.ReleasedLease(lease.source, lease.key, lease, outcome, lease.held_for, error))


def _ended(claim: Claim, ending: Ending | None, delivery: str) -> Claim:
    """What a release asks for: *claim*, for the *delivery* whose end is to be remembered."""
    return claim if ending is None else replace(claim, delivery=delivery)
