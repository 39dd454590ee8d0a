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
    """
    The leases that are alive, the next one due first. Dropped ones are passed over, and cleared out in time.

    One that was taken as due is *asked for* until it is scheduled again: nothing is due
    about it then but the end of its trust, which no store can delay.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Lease, Emit]] = []
        self._order = itertools.count()
        self._live: dict[Lease, int] = {}
        """The number of each one's entry that counts: the last that was made."""
        self._asked_for: dict[Lease, Emit] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._live)

    def add(self, lease: Lease, emit: Emit, at: float) -> None:
        """Have *lease* renewed at *at*, in seconds of the heartbeat's clock."""
        self._push(lease, emit, at)

    def again(self, lease: Lease, emit: Emit, at: float) -> None:
        """Have *lease* renewed at *at*, unless it was dropped meanwhile."""
        if lease in self._live:
            self._push(lease, emit, at)

    def drop(self, lease: Lease) -> None:
        """Renew *lease* no more."""
        self._live.pop(lease, None)
        self._asked_for.pop(lease, None)
        if len(self._heap) > 64 + 4 * len(self._live):
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def take_due(self, now: float) -> list[Watched]:
        """All that are due, and with them those that will be in a moment: one call to the store for many."""
        due: list[Watched] = []
        while self._heap and self._heap[0][0] <= now + (self._heap[0][2].ttl / 50 if due else 0.0):
            _, number, lease, emit = self._heap[0]
            if self._live.get(lease) == number:
                self._asked_for[lease] = emit  # first: whatever strikes now, it isn't forgotten
                due.append((lease, emit))
            heapq.heappop(self._heap)
        return due

    def overdue(self, now: float) -> list[Watched]:
        """Those that are asked for, and whose trust has ended without an answer."""
        return [pair for pair in self._asked_for.items() if pair[0].trusted_until <= now]

    def take_back(self, at: float) -> None:
        """Have all renewed at *at* that were taken as due and aren't scheduled again yet."""
        for lease, emit in list(self._asked_for.items()):
            self.again(lease, emit, at)

    def next_at(self, latest: float) -> float:
        """When the next one is due or the trust of one that is asked for ends, *latest* if nothing is before that."""
        at = min((lease.trusted_until for lease in self._asked_for), default=latest)
        return min(self._heap[0][0] if self._heap else latest, at, latest)

    def clear(self) -> None:
        """Forget what was dropped, once nothing is alive."""
        self._heap.clear()
        self._asked_for.clear()

    def _push(self, lease: Lease, emit: Emit, at: float) -> None:
        number = next(self._order)
        lease.beat_due = at
        heapq.heappush(self._heap, (at, number, lease, emit))
        self._live[lease] = number
        self._asked_for.pop(lease, None)
