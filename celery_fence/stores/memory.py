"""
Leases in the memory of one process: for tests, eager mode and single-process workers.

The rules are those of the Redis scripts, one method for each question, under one
lock. Stores of the same URL and prefix see the same leases, for as long as one of
them is alive; another process never sees them, which is why a worker with more than
one process refuses this store (`single_process`). A fork takes a copy with it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from celery_fence.errors import ConfigError
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.native import new_lock
from celery_fence.locking.store import (
    AcquireAnswer,
    Claim,
    Ended,
    ForceReleaseAnswer,
    ForceReleased,
    Gone,
    Granted,
    Held,
    Holder,
    Kept,
    ReleaseAnswer,
    Released,
    Renewal,
    RenewAnswer,
)

Clock = Callable[[], float]
"""Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class _Lease:
    claim: Claim
    token: int
    since: float
    beat: float
    expires: float


@dataclass(frozen=True, slots=True)
class _Counter:
    """What outlives a lease: last token, who released last, up to which token holders are fenced off."""

    token: int = 0
    released: str | None = None
    forced: int = 0
    used: float = 0.0


class _Space:
    """The leases and counters behind one URL and prefix, in the order of their last use."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.leases: OrderedDict[str, _Lease] = OrderedDict()
        self.counters: OrderedDict[str, _Counter] = OrderedDict()


# Which leases a URL means is a fact of the process, as a redis:// URL's server is one of the network.
_SPACES: WeakValueDictionary[tuple[str, str], _Space] = WeakValueDictionary()
_SPACES_LOCK = threading.Lock()


class MemoryStore:
    """The `Store` that lives in this process. *clock* gives seconds since the epoch and judges expiry."""

    single_process = True

    def __init__(
        self,
        name: str = "",
        *,
        prefix: str = "fence",
        counter_retention: float = 604800.0,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._retention = counter_retention
        self._clock = clock or steady_wall_clock()
        with _SPACES_LOCK:
            self._space = _SPACES.setdefault((name, prefix), _Space())

    def __repr__(self) -> str:
        return f"<MemoryStore {self.description}>"

    @property
    def description(self) -> str:
        """The store's URL."""
        return f"memory://{self.name}"

    def acquire(self, claim: Claim) -> AcquireAnswer:
        """As `Store.acquire`."""
        _check_ttl(claim.ttl)
        with self._space.lock:
            now = self._clock()
            counter = self._counter(claim.key, now)
            if counter.released == claim.owner:
                return Ended()
            lease = self._lease(claim.key, now)
            if lease and lease.claim.owner != claim.owner:
                return Held(_holder(lease, now))
            return self._grant(claim, lease, counter, now)

    def renew(self, renewals: Sequence[Renewal]) -> list[RenewAnswer]:
        """As `Store.renew`."""
        for renewal in renewals:
            _check_ttl(renewal.claim.ttl)
        with self._space.lock:
            now = self._clock()
            return [self._renew(renewal, now) for renewal in renewals]

    def release(self, claim: Claim, token: int) -> ReleaseAnswer:
        """As `Store.release`."""
        with self._space.lock:
            now = self._clock()
            counter = self._counter(claim.key, now)
            if counter.released == claim.owner:
                return Released()
            lease = self._lease(claim.key, now)
            gone = _gone(lease, counter, Renewal(claim, token, 0.0), now)
            if gone and not _is_of(claim, lease):
                return gone
            self._space.leases.pop(claim.key, None)
            last = max(counter.token, token, lease.token if lease else 0)
            self._keep_counter(claim.key, replace(counter, token=last, released=claim.owner), now)
            return Released()

    def force_release(self, key: str, owner: str | None = None) -> ForceReleaseAnswer:
        """As `Store.force_release`."""
        with self._space.lock:
            now = self._clock()
            lease = self._lease(key, now)
            if lease and owner is not None and lease.claim.owner != owner:
                return Held(_holder(lease, now))
            counter = self._counter(key, now)
            fence = max(max(counter.token, lease.token if lease else 0) + 1, _microseconds(now))
            self._keep_counter(key, replace(counter, token=fence, forced=fence), now)
            self._space.leases.pop(key, None)
            return ForceReleased(_holder(lease, now) if lease else None)

    def holder(self, key: str) -> Holder | None:
        """As `Store.holder`."""
        with self._space.lock:
            now = self._clock()
            lease = self._lease(key, now)
            return _holder(lease, now) if lease else None

    def leases(self) -> Iterator[Holder]:
        """As `Store.leases`."""
        with self._space.lock:
            now = self._clock()
            live = [_holder(lease, now) for lease in self._space.leases.values() if lease.expires > now]
        yield from live

    def for_heartbeat(self) -> MemoryStore:
        """This store: there is no connection to share."""
        return self

    def close(self) -> None:
        """Nothing to close; the leases stay until they expire or the last store of this URL is gone."""

    def flush(self) -> None:
        """Lose everything, as a server that restarts without its data does. For tests."""
        with self._space.lock:
            self._space.leases.clear()
            self._space.counters.clear()

    def _grant(self, claim: Claim, lease: _Lease | None, counter: _Counter, now: float) -> Granted:
        token = lease.token if lease else max(counter.token + 1, _microseconds(now))
        since = lease.since if lease else now
        self._drop_expired(now)
        self._keep(claim, token, since, now)
        self._keep_counter(claim.key, replace(counter, token=max(token, counter.token)), now)
        return Granted(token, since)

    def _renew(self, renewal: Renewal, now: float) -> RenewAnswer:
        claim, token = renewal.claim, renewal.token
        lease = self._lease(claim.key, now)
        counter = self._counter(claim.key, now)
        if lease and _is_of(claim, lease) and lease.token <= token:
            self._keep(lease.claim, token, lease.since, now, ttl=claim.ttl)
            return Kept()
        gone = _gone(lease, counter, renewal, now)
        if gone is None:
            self._keep(claim, token, renewal.since, now)
            self._keep_counter(claim.key, replace(counter, token=token), now)
        return gone or Kept(reinstated=True)

    def _lease(self, key: str, now: float) -> _Lease | None:
        lease = self._space.leases.get(key)
        if lease and lease.expires <= now:
            del self._space.leases[key]
            return None
        return lease

    def _counter(self, key: str, now: float) -> _Counter:
        counter = self._space.counters.get(key)
        return counter if counter and counter.used + self._retention > now else _Counter()

    def _keep(self, claim: Claim, token: int, since: float, now: float, *, ttl: float | None = None) -> None:
        claim = claim if ttl is None else replace(claim, ttl=ttl)
        self._space.leases[claim.key] = _Lease(claim, token, since, beat=now, expires=now + claim.ttl)
        self._space.leases.move_to_end(claim.key)

    def _keep_counter(self, key: str, counter: _Counter, now: float) -> None:
        self._space.counters[key] = replace(counter, used=now)
        self._space.counters.move_to_end(key)

    def _drop_expired(self, now: float) -> None:
        """Forget idle counters and dead leases, oldest first; constant work for each grant, over time."""
        counters, leases = self._space.counters, self._space.leases
        while counters and next(iter(counters.values())).used + self._retention <= now:
            counters.popitem(last=False)
        # Not sorted by expiry: a long one in front delays the sweep, at most by its TTL.
        while leases and next(iter(leases.values())).expires <= now:
            leases.popitem(last=False)


def steady_wall_clock() -> Clock:
    """Seconds since the epoch that never step: the wall clock of now, carried on by the steady one."""
    steady = steady_clock()
    offset = time.time() - steady()
    return lambda: offset + steady()


def _is_of(claim: Claim, lease: _Lease | None) -> bool:
    return lease is not None and lease.claim.owner == claim.owner


def _gone(lease: _Lease | None, counter: _Counter, wish: Renewal, now: float) -> Gone | None:
    """Why *wish* can't be had, or None when the key is the owner's or nobody's since."""
    last = counter.token
    if lease:
        if not _is_of(wish.claim, lease):
            return Gone("taken", _holder(lease, now))
        last = max(last, lease.token)
    if counter.released == wish.claim.owner:
        return Gone("released")
    if counter.forced >= wish.token:
        return Gone("force_released")
    return Gone("superseded") if last > wish.token else None


def _holder(lease: _Lease, now: float) -> Holder:
    return Holder(
        key=lease.claim.key,
        owner=lease.claim.owner,
        token=lease.token,
        ttl_left=lease.expires - now,
        since=lease.since,
        beat_age=max(now - lease.beat, 0.0),
        facts=lease.claim.facts,
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _check_ttl(ttl: float) -> None:
    if not (math.isfinite(ttl) and ttl > 0):
        raise ConfigError(f"the ttl of a lease must be a number of seconds above 0, not {ttl!r}")
