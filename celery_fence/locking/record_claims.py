"""
Claims of idempotency records at one store: made with a lease or under one, and not kept up by the dead.

A record is claimed under one lock key. Where it is claimed under another one than the asker's, the lease
on that key tells whether anybody still works there; if nobody does, the claim is dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from celery_fence.errors import ClaimMismatch, ConfigError, StoreUnavailable
from celery_fence.locking.records import ClaimedElsewhere, Done, Recording

if TYPE_CHECKING:
    from celery_fence.locking.debts import Debts
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.records import Record
    from celery_fence.locking.store import Claim, DeliveryEnded, Ended, Ending, Granted, Held, Store


class RecordClaims:
    """Claims records at *store*; an end that can't be written there is left to *debts*."""

    def __init__(self, store: Store, debts: Debts) -> None:
        self._store = store
        self._debts = debts

    def acquire(self, claim: Claim) -> Granted | Held | Ended | DeliveryEnded | Done:
        """
        Ask for the key of *claim*, and with it for its record; more than once only in the way of a dead run's claim.

        Raises:
            ClaimMismatch: a run under another lock key is doing the work.

        """
        answer = self._store.acquire(claim)
        if isinstance(answer, ClaimedElsewhere) and self._forget_dead_claim(answer.record):
            answer = self._store.acquire(claim)
        if isinstance(answer, ClaimedElsewhere):
            raise _mismatch(claim, answer.record)
        return answer

    def claim(self, lease: Lease, claim: Claim) -> Done | None:
        """Claim the record of *claim* for work under *lease*; `Done` where it was done. Raises also `LeaseLost`."""
        store = power(self._store)
        held = replace(claim, owner=lease.owner)
        answer = store.claim_record(held, lease.token)
        if isinstance(answer, ClaimedElsewhere) and answer.record.lock_key == lease.key:
            lease.lose("superseded")
            raise lease.loss()
        if isinstance(answer, ClaimedElsewhere) and self._forget_dead_claim(answer.record):
            answer = store.claim_record(held, lease.token)
        if isinstance(answer, ClaimedElsewhere):
            raise _mismatch(claim, answer.record)
        return answer

    def end(self, lease: Lease, claim: Claim, ending: Ending | None) -> None:
        """End what `claim` began; in the background where the store can't be reached."""
        held = replace(claim, owner=lease.owner)

        def call(store: Store) -> None:
            power(store).end_record(held, lease.token, ending)

        try:
            call(self._store)
        except StoreUnavailable as error:
            self._debts.owe(call, claim, ending, error, paid=lambda _: None)

    def _forget_dead_claim(self, record: Record) -> bool:
        """Whether nobody works under this claim any more; then it is no longer in the way."""
        holder = self._store.holder(record.lock_key)
        if holder is not None and holder.owner == record.owner and not holder.closed:
            return False
        power(self._store).delete_record(record.key, record.owner)
        return True


def power(store: Store) -> Recording:
    """*store* as one that keeps records. `ConfigError` where it can't."""
    if isinstance(store, Recording):
        return store
    raise ConfigError(
        f"The store {store.description} keeps no idempotency records, so idempotency_key can't be used."
    )


def _mismatch(claim: Claim, record: Record) -> ClaimMismatch:
    facts = record.facts
    who = f"{facts.task_name}[{facts.task_id}]" if facts.task_name else f"owner {record.owner}"
    return ClaimMismatch(
        f"The idempotency key {record.key!r} is being worked on by {who} under the lock key {record.lock_key!r}, and "
        f"this run has the lock key {claim.key!r}: its lease wouldn't keep the other one out, so nothing was run. Give "
        "all work of one idempotency key the same lock_key.",
        record=record.key,
        key=claim.key,
        claimed_under=record.lock_key,
    )
