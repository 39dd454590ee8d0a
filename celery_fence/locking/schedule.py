"""When which lease is to be renewed: plain data, used by the heartbeat under its lock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from celery_fence.locking import events

if TYPE_CHECKING:
    from celery_fence.locking.lease import Lease

Emit = Callable[[events.Event], None]
Watched = tuple["Lease", Emit]


class Schedule:
    """The leases that are alive, the next one due first. Dropped ones are passed over, and cleared out in time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Lease, Emit]] = []
        self._order = itertools.count()
        self._live: set[Lease] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._live)

    def add(self, lease: Lease, emit: Emit, at: float) -> None:
        """Have *lease* renewed at *at*, in seconds of the heartbeat's clock."""
        self._live.add(lease)
        self._push(lease, emit, at)

    def again(self, lease: Lease, emit: Emit, at: float) -> None:
        """Have *lease* renewed at *at*, unless it was dropped meanwhile."""
        if lease in self._live:
            self._push(lease, emit, at)

    def drop(self, lease: Lease) -> None:
        """Renew *lease* no more."""
        self._live.discard(lease)
        if len(self._heap) > 64 + 4 * len(self._live):
            self._heap = [entry for entry in self._heap if entry[2] in self._live]
            heapq.heapify(self._heap)

    def take_due(self, now: float) -> list[Watched]:
        """All that are due, and with them those that will be in a moment: one call to the store for many."""
        due: list[Watched] = []
        while self._heap and self._heap[0][0] <= now + (self._heap[0][2].ttl / 50 if due else 0.0):
            _, _, lease, emit = heapq.heappop(self._heap)
            if lease in self._live:
                due.append((lease, emit))
        return due

    def put_back(self, due: list[Watched], at: float) -> None:
        """Have those of *due* renewed at *at* that aren't scheduled again yet."""
        scheduled = {entry[2] for entry in self._heap}
        for lease, emit in due:
            if lease not in scheduled:
                self.again(lease, emit, at)

    def next_at(self, latest: float) -> float:
        """When the next one is due, *latest* if none is before that."""
        return min(self._heap[0][0], latest) if self._heap else latest

    def clear(self) -> None:
        """Forget what was dropped, once nothing is alive."""
        self._heap.clear()

    def _push(self, lease: Lease, emit: Emit, at: float) -> None:
        lease.beat_due = at
        heapq.heappush(self._heap, (at, next(self._order), lease, emit))
