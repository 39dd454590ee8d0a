"""
One beat: a store is asked about the leases that are due, and what it answers is noted.

This runs in the renewer's thread of that store, without the heartbeat's lock. A lease that was
released or lost while it was asked for is recognised by its state, and its answer dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.store import Gone, Kept, Renewal
from celery_fence.locking.trust import renewal_due

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.schedule import Emit, Watched
    from celery_fence.locking.store import RenewAnswer, Store

BATCH = 100
"""Leases renewed in one call to the store."""


def next_beat(lease: Lease, asked_at: float) -> float:
    """When to renew *lease*, last asked for at *asked_at*; at the end of its trust at the latest."""
    due = renewal_due(asked_at, lease.ttl, lease.renew_fraction, random.random())
    return min(due, lease.trusted_until)


class Beat:
    """
    Renews leases at *store* and says what comes next for each.

    *again* is called with a lease, whom to tell of it, and when it is due; *part* with one that
    has ended, and whom to tell; *complain* with a message and the exception of a store that breaks its word.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        again: Callable[[Lease, Emit, float], object],
        part: Callable[[Lease, Emit], object],
        complain: Callable[[str, BaseException], object],
    ) -> None:
        self._store = store
        self._clock = clock
        self._again = again
        self._part = part
        self._complain = complain

    def renew(self, due: list[Watched]) -> None:
        """Renew all that are *due* in batches, the shortest TTL first."""
        due.sort(key=lambda pair: pair[0].ttl)
        for start in range(0, len(due), BATCH):
            self._renew(due[start : start + BATCH])

    def _renew(self, pairs: list[Watched]) -> None:
        asked_at = self._clock()
        try:
            answers = self._store.renew(
                [Renewal(lease.claim, lease.token, lease.since) for lease, _ in pairs]
            )
        except StoreUnavailable as error:
            self._try_again(pairs, error)
        except Exception as error:  # noqa: BLE001 - a broken store must not end the heartbeat, nor pass unseen
            self._complain("A renewal broke", error)
            self._try_again(pairs, error)
        else:
            self._note(pairs, answers, asked_at)

    def _note(self, pairs: Iterable[Watched], answers: list[RenewAnswer], asked_at: float) -> None:
        for (lease, emit), answer in zip(pairs, answers, strict=True):
            match answer:
                case Gone(reason="released"):
                    self._part(lease, emit)  # our own release came first, and isn't answered yet
                case Gone(reason=reason):
                    lease.lose(reason)
                    self._part(lease, emit)
                case Kept(reinstated=reinstated):
                    self._note_kept(lease, emit, asked_at, reinstated=reinstated)

    def _note_kept(self, lease: Lease, emit: Emit, asked_at: float, *, reinstated: bool) -> None:
        lag, failures = max(asked_at - lease.beat_due, 0.0), lease.failures
        if not lease.renewed(asked_at):
            self._part(lease, emit)
            return
        self._again(lease, emit, next_beat(lease, asked_at))
        emit(events.Renewed(lease.source, lease.key, lease, lag, reinstated, failures))

    def _try_again(self, pairs: Iterable[Watched], error: Exception) -> None:
        now = self._clock()
        for lease, emit in pairs:
            if lease.lost:
                self._part(lease, emit)
                continue
            lease.suspect()
            left = lease.trusted_until - now
            failed = events.RenewalFailed(
                lease.source, lease.key, lease, error, max(left, 0.0), lease.failures
            )
            emit(failed)
            pace = min(max(lease.ttl / 20, 0.05), 1.0) * (0.5 + random.random())
            self._again(lease, emit, min(now + pace, lease.trusted_until))
