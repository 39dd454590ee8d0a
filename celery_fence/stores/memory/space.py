"""What is kept in memory behind one URL and prefix: leases, counters, markers of ended deliveries, and records."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from celery_fence.locking.native import new_lock
from celery_fence.locking.records import Record
from celery_fence.locking.store import Claim, Ending, Holder


@dataclass(frozen=True, slots=True)
class Lease:
    """A grant of a key; times in seconds since the epoch."""

    claim: Claim
    token: int
    since: float
    beat: float
    expires: float

    @property
    def opens(self) -> float:
        """When the key opens by itself: after the lost delay, during which nobody works."""
        return self.expires + self.claim.lost_delay

    def closed(self, now: float) -> bool:
        """Whether the lease has expired, and the key waits for its lost delay."""
        return self.expires <= now

    def is_of(self, claim: Claim) -> bool:
        """Whether the owner of *claim* was granted it."""
        return self.claim.owner == claim.owner


@dataclass(frozen=True, slots=True)
class Counter:
    """What outlives a lease: last token, who released last, up to which token holders are fenced off."""

    token: int = 0
    released: str | None = None
    released_at: float | None = None
    forced: int = 0
    used: float = 0.0


@dataclass(frozen=True, slots=True)
class Marker:
    """How a delivery ended, and by whose word; *holder* where the end was a decision on a miss."""

    ending: Ending
    by: str
    at: float
    expires: float
    noted: bool = False
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A record, and when it expires."""

    record: Record
    expires: float


class Space:
    """Everything behind one URL and prefix, in the order of its last use; whoever asks holds `lock`."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.leases: OrderedDict[str, Lease] = OrderedDict()
        self.counters: OrderedDict[str, Counter] = OrderedDict()
        self.markers: OrderedDict[tuple[str, str], Marker] = OrderedDict()
        self.records: OrderedDict[str, Kept] = OrderedDict()

    def lease(self, key: str, now: float) -> Lease | None:
        """The lease that keeps *key* from others, closed ones too."""
        lease = self.leases.get(key)
        if lease and lease.opens <= now:
            del self.leases[key]
            return None
        return lease

    def keep_lease(self, claim: Claim, token: int, since: float, now: float) -> None:
        """Grant or renew: from now on for the full TTL."""
        self.leases[claim.key] = Lease(claim, token, since, beat=now, expires=now + claim.ttl)
        self.leases.move_to_end(claim.key)

    def counter(self, key: str, now: float, retention: float) -> Counter:
        """The counter of *key*, an unused one where none is left after *retention* seconds."""
        counter = self.counters.get(key)
        return counter if counter and counter.used + retention > now else Counter()

    def keep_counter(self, key: str, counter: Counter, now: float) -> None:
        """From now on for the full retention."""
        self.counters[key] = replace(counter, used=now)
        self.counters.move_to_end(key)

    def marker(self, key: str, delivery: str, now: float) -> Marker | None:
        """How *delivery* ended; nothing is remembered of one without identity."""
        marker = self.markers.get((key, delivery)) if delivery else None
        return marker if marker and marker.expires > now else None

    def keep_marker(self, key: str, delivery: str, marker: Marker) -> None:
        """Until *marker* expires; of a delivery without identity nothing is kept."""
        if delivery:
            self.markers[key, delivery] = marker
            self.markers.move_to_end((key, delivery))

    def record(self, key: str, now: float) -> Record | None:
        """The record of the idempotency *key*, if one is kept."""
        kept = self.records.get(key) if key else None
        return replace(kept.record, left=kept.expires - now) if kept and kept.expires > now else None

    def keep_record(self, record: Record, now: float, retention: float) -> None:
        """From now on for the full retention."""
        self.records[record.key] = Kept(record, now + retention)
        self.records.move_to_end(record.key)

    def drop_expired(self, now: float, retention: float) -> None:
        """
        Forget what is over, oldest first; constant work for each grant, over time.

        Leases, markers and records aren't sorted by expiry: a long one in front delays the
        sweep, at most by its own time.
        """
        while self.counters and next(iter(self.counters.values())).used + retention <= now:
            self.counters.popitem(last=False)
        while self.leases and next(iter(self.leases.values())).opens <= now:
            self.leases.popitem(last=False)
        while self.markers and next(iter(self.markers.values())).expires <= now:
            self.markers.popitem(last=False)
        while self.records and next(iter(self.records.values())).expires <= now:
            self.records.popitem(last=False)

    def clear(self) -> None:
        """Lose everything."""
        self.leases.clear()
        self.counters.clear()
        self.markers.clear()
        self.records.clear()


# Which leases a URL means is a fact of the process, as a redis:// URL's server is one of the network.
_SPACES: WeakValueDictionary[tuple[str, str], Space] = WeakValueDictionary()
_SPACES_LOCK = threading.Lock()


def space_of(name: str, prefix: str) -> Space:
    """The space behind ``memory://name``, kept as long as somebody has it."""
    with _SPACES_LOCK:
        return _SPACES.setdefault((name, prefix), Space())
