"""How the contract's tests ask for work that is to be done once."""

from __future__ import annotations

from dataclasses import replace

from celery_fence.locking.records import Done, Record, Recording
from celery_fence.locking.store import Claim, Ending, Facts, Store
from celery_fence.testing.contract.asking import claim_of, numbers

RETURNED = Ending("returned", result=b"5")
FACTS = Facts("shop.pay", "id-1", host="here", pid=7)


def once(
    record: str = "payment:7", *, key: str = "tenant:7", ttl: float = 30.0, facts: Facts = FACTS
) -> Claim:
    """A claim to do the work of an idempotency key, by an owner nobody had before."""
    return replace(claim_of(key, ttl=ttl), record=record, facts=facts, message=f"m{next(numbers)}")


def recording(store: Store) -> Recording:
    """The power that this contract is about."""
    assert isinstance(store, Recording)
    return store


def record_of(store: Store, key: str = "payment:7") -> Record:
    """The record of *key*, which must have one."""
    found = recording(store).record(key)
    assert found is not None
    return found


def done(store: Store, claim: Claim) -> Record:
    """What the work of *claim* has come to, which must be done."""
    answer = store.acquire(claim)
    assert isinstance(answer, Done), answer
    return answer.record
