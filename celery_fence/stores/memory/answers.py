"""From what is kept in memory to the frozen answers of `celery_fence.locking.store`: pure, nothing is changed."""

from __future__ import annotations

from dataclasses import replace

from celery_fence.locking.records import ClaimedElsewhere, Done, Record
from celery_fence.locking.store import Claim, DeliveryEnded, Gone, Held, Holder
from celery_fence.stores.memory.space import Counter, Lease, Marker


def holder_of(lease: Lease, now: float) -> Holder:
    """Who has the key, or had it while it is closed."""
    closed = lease.closed(now)
    return Holder(
        key=lease.claim.key,
        owner=lease.claim.owner,
        token=lease.token,
        ttl_left=(lease.opens if closed else lease.expires) - now,
        since=lease.since,
        beat_age=max(now - lease.beat, 0.0),
        facts=lease.claim.facts,
        closed=closed,
    )


def ended_of(marker: Marker, owner: str, now: float) -> Held | DeliveryEnded:
    """What a delivery that has ended is told; the owner that decided so on a miss, its own miss again."""
    if marker.holder and marker.by == owner:
        return Held(marker.holder)
    return DeliveryEnded(marker.ending, marker.noted, max(now - marker.at, 0.0), marker.holder)


def refused_by(record: Record | None, key: str) -> Done | ClaimedElsewhere | None:
    """Why *record* lets nobody take *key*: its work is done, or another key guards it; None where it may be claimed."""
    if record is None:
        return None
    if record.done is not None:
        return Done(record)
    return ClaimedElsewhere(replace(record, value=None)) if record.lock_key != key else None


def why_gone(claim: Claim, token: int, lease: Lease | None, counter: Counter, now: float) -> Gone | None:
    """Why *claim* can't keep *token*, or None when the key is the owner's or nobody's since."""
    newest = counter.token
    if lease and not is_of_the_past(lease, claim, token):
        if not lease.is_of(claim):
            return Gone("taken", holder_of(lease, now))
        if lease.closed(now):
            return Gone("expired")
        newest = max(newest, lease.token)
    if counter.released == claim.owner:
        return Gone("released")
    if counter.forced >= token:
        return Gone("force_released")
    return Gone("superseded") if newest > token else None


def is_of_the_past(lease: Lease, claim: Claim, token: int) -> bool:
    """Whether another owner has *lease* because data of an earlier moment came back: it is older than *token*."""
    return not lease.is_of(claim) and lease.token < token


def is_news(claim: Claim, lease: Lease | None, marker: Marker | None, *, rightful: bool) -> bool:
    """
    Whether the end of this run is to be remembered.

    Not while a copy of the delivery holds the key: its end will be the one that
    counts. The first end stands; but the key's own holder may bring another one while
    the epilogue of the first isn't complete.
    """
    if lease and not (rightful or lease.is_of(claim)) and lease.claim.delivery == claim.delivery:
        return False
    return marker is None or (rightful and marker.by != claim.owner and not marker.noted)
