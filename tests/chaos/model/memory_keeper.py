"""The memory store in the place of the model: put into a state, asked, and read back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from celery_fence.locking import store as words
from celery_fence.stores.memory import MemoryStore, space
from celery_fence.testing.clock import FakeClock
from tests.chaos.model.facts import Claim, Counter, Holder, Key, Lease, Marker
from tests.chaos.model.translation import TICK, Scale, Seen, ask, claim_of, in_ranks
from tests.chaos.model.vectors import Vector


class MemoryKeeper:
    """The memory store under a clock that stands still."""

    def __init__(self) -> None:
        self._clock = FakeClock()
        self._store = MemoryStore("vectors", clock=self._clock)

    def run(self, vectors: Sequence[Vector]) -> list[Seen]:
        """What becomes of each vector."""
        return [self._run(f"key-{number}", vector) for number, vector in enumerate(vectors)]

    def _run(self, name: str, vector: Vector) -> Seen:
        now_us = round(self._clock() * 1_000_000)
        scale = Scale(vector, now_us)
        self._put(name, vector.before, scale)
        answer = ask(self._store, name, vector.question, scale.real(vector.question.token))
        rank = partial(scale.rank, until_us=now_us)
        listed = name in {holder.key for holder in self._store.leases()}
        return Seen(in_ranks(answer, rank), self._read(name, rank), listed)

    def _put(self, name: str, key: Key, scale: Scale) -> None:
        kept, now = self._store._space, self._clock()
        kept.clear()
        if key.lease:
            lease = key.lease
            kept.leases[name] = space.Lease(
                claim=claim_of(name, Claim(lease.owner, 3, lease.lost_delay, lease.delivery, lease.message)),
                token=scale.real(lease.token),
                since=now,
                beat=now,
                expires=now + (lease.left - lease.lost_delay) * TICK,
            )
        counter = key.counter
        if counter != Counter():
            kept.counters[name] = space.Counter(
                scale.real(counter.token),
                counter.released or None,
                forced=scale.real(counter.forced),
                used=now,
            )
        for delivery, marker in key.markers:
            kept.markers[name, delivery] = self._marker(name, marker, scale)

    def _marker(self, name: str, marker: Marker, scale: Scale) -> space.Marker:
        told, now = marker.told, self._clock()
        holder = told and words.Holder(name, told.owner, scale.real(told.token), TICK, closed=told.closed)
        ending = words.Ending(marker.how, marker.value)
        return space.Marker(ending, marker.by, now, now + TICK, marker.noted, holder)

    def _read(self, name: str, rank: Any) -> Key:
        kept, now = self._store._space, self._clock()
        lease, counter = kept.leases.get(name), kept.counters.get(name) or space.Counter()
        markers = [(delivery, marker) for (key, delivery), marker in kept.markers.items() if key == name]
        return Key(
            lease and self._lease(lease, rank, now),
            Counter(rank(counter.token), counter.released or "", rank(counter.forced)),
            tuple(sorted((delivery, self._kept_marker(marker, rank)) for delivery, marker in markers)),
        )

    def _lease(self, lease: space.Lease, rank: Any, now: float) -> Lease:
        claim = lease.claim
        return Lease(
            owner=claim.owner,
            token=rank(lease.token),
            left=round((lease.opens - now) / TICK),
            lost_delay=round(claim.lost_delay / TICK),
            delivery=claim.delivery,
            message=claim.message,
        )

    def _kept_marker(self, marker: space.Marker, rank: Any) -> Marker:
        told = marker.holder and Holder(marker.holder.owner, rank(marker.holder.token), marker.holder.closed)
        return Marker(marker.ending.how, marker.by, marker.noted, marker.ending.value, told)
