"""The lease store in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from celery_fence.locking.clock import steady_clock
from celery_fence.locking.store import (
    AcquireAnswer,
    Claim,
    Ended,
    Ending,
    ForceReleaseAnswer,
    ForceReleased,
    Gone,
    Granted,
    Held,
    History,
    Holder,
    Kept,
    Note,
    RaiseAnswer,
    Raised,
    ReleaseAnswer,
    Released,
    Renewal,
    RenewAnswer,
)
from celery_fence.stores.memory.answers import ended_of, holder_of, is_news, refused_by, why_gone
from celery_fence.stores.memory.records import MemoryRecords, check_seconds
from celery_fence.stores.memory.space import Counter, Lease, Marker, space_of

Clock = Callable[[], float]
"""Seconds since the epoch."""


class MemoryStore(MemoryRecords):
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
        self._space = space_of(name, prefix)

    def __repr__(self) -> str:
        return f"<MemoryStore {self.description}>"

    @property
    def description(self) -> str:
        """The store's URL."""
        return f"memory://{self.name}"

    def acquire(self, claim: Claim) -> AcquireAnswer:
        """As `Store.acquire`."""
        _check(claim)
        with self._space.lock:
            now = self._clock()
            lease = self._space.lease(claim.key, now)
            if lease and lease.is_of(claim) and not lease.closed(now):
                return self._grant(claim, lease, now)
            marker = self._space.marker(claim.key, claim.delivery, now)
            if marker:
                return ended_of(marker, claim.owner, now)
            if self._counter(claim.key, now).released == claim.owner:
                return Ended()
            refused = refused_by(self._space.record(claim.record, now), claim.key)
            if refused:
                return refused
            return self._miss(claim, lease, now) if lease else self._grant(claim, None, now)

    def renew(self, renewals: Sequence[Renewal]) -> list[RenewAnswer]:
        """As `Store.renew`."""
        for renewal in renewals:
            _check(renewal.claim)
        with self._space.lock:
            now = self._clock()
            return [self._renew(renewal, now) for renewal in renewals]

    def release(self, claim: Claim, token: int, ending: Ending | None = None) -> ReleaseAnswer:
        """As `Store.release`."""
        if claim.delivery:
            check_seconds("retention", claim.retention)
        with self._space.lock:
            now = self._clock()
            lease, counter = self._space.lease(claim.key, now), self._counter(claim.key, now)
            marker = self._space.marker(claim.key, claim.delivery, now)
            again = counter.released == claim.owner
            mine = again or (lease.is_of(claim) if lease else not token)
            gone = None if mine else why_gone(claim, token, lease, counter, now)
            rightful = gone is None and not again
            if rightful:
                self._free(claim, token, lease, now)
            ended = marker is not None and marker.by != claim.owner
            if ending and is_news(claim, lease, marker, rightful=rightful):
                self._remember(claim, ending, now)
                ended = False
            self.keep_end(claim, token, ending, now, again=again, rightful=rightful)
            return replace(gone or Released(), ended=ended)

    def note(self, notes: Sequence[Note]) -> None:
        """As `Store.note`."""
        for note in notes:
            check_seconds("retention", note.retention)
        with self._space.lock:
            now = self._clock()
            for note in notes:
                self._note(note, now)

    def raise_counter(self, claim: Claim, token: int, seen: int) -> RaiseAnswer:
        """As `Store.raise_counter`."""
        with self._space.lock:
            now = self._clock()
            lease, counter = self._space.lease(claim.key, now), self._counter(claim.key, now)
            if lease and lease.is_of(claim) and lease.token == token and not lease.closed(now):
                raised = replace(counter, token=max(counter.token, seen))
                self._space.keep_counter(claim.key, raised, now)
                return Raised()
            return why_gone(claim, token, lease, counter, now) or Gone("expired")

    def force_release(self, key: str, owner: str | None = None) -> ForceReleaseAnswer:
        """As `Store.force_release`."""
        with self._space.lock:
            now = self._clock()
            lease = self._space.lease(key, now)
            if lease and owner is not None and lease.claim.owner != owner:
                return Held(holder_of(lease, now))
            counter = self._counter(key, now)
            fence = max(max(counter.token, lease.token if lease else 0) + 1, _microseconds(now))
            self._space.keep_counter(key, replace(counter, token=fence, forced=fence), now)
            self._space.leases.pop(key, None)
            return ForceReleased(holder_of(lease, now) if lease else None)

    def holder(self, key: str) -> Holder | None:
        """As `Store.holder`."""
        with self._space.lock:
            now = self._clock()
            lease = self._space.lease(key, now)
            return holder_of(lease, now) if lease else None

    def leases(self) -> Iterator[Holder]:
        """As `Store.leases`."""
        with self._space.lock:
            now = self._clock()
            live = [holder_of(lease, now) for lease in self._space.leases.values() if lease.opens > now]
        yield from live

    def history(self, key: str) -> History:
        """As `Inspectable.history`."""
        with self._space.lock:
            counter = self._counter(key, self._clock())
        return History(
            token=counter.token,
            granted=counter.token / 1_000_000 if counter.token > counter.forced else None,
            released=counter.released_at,
            force_released=counter.forced / 1_000_000 if counter.forced else None,
        )

    def for_heartbeat(self) -> MemoryStore:
        """This store: there is no connection to share."""
        return self

    def close(self) -> None:
        """Nothing to close; the leases stay until they expire or the last store of this URL is gone."""

    def flush(self) -> None:
        """Lose everything, as a server that restarts without its data does. For tests."""
        with self._space.lock:
            self._space.clear()

    def _counter(self, key: str, now: float) -> Counter:
        return self._space.counter(key, now, self._retention)

    def _grant(self, claim: Claim, lease: Lease | None, now: float) -> Granted:
        counter = self._counter(claim.key, now)
        token = lease.token if lease else _next_token(counter, now)
        since = lease.since if lease else now
        self._space.drop_expired(now, self._retention)
        self._space.keep_lease(claim, token, since, now)
        self._space.keep_counter(claim.key, replace(counter, token=max(token, counter.token)), now)
        self.keep_claim(claim, token, since, now)
        return Granted(token, since)

    def _miss(self, claim: Claim, lease: Lease, now: float) -> Held:
        """Who has the key; a decision for good is remembered, unless the holder works on the same message."""
        holder = holder_of(lease, now)
        akin = bool(claim.message) and claim.message == lease.claim.message
        if claim.if_held and not akin:
            self._remember(claim, Ending(claim.if_held), now, holder)
        return Held(holder)

    def _renew(self, renewal: Renewal, now: float) -> RenewAnswer:
        claim, token = renewal.claim, renewal.token
        lease, counter = self._space.lease(claim.key, now), self._counter(claim.key, now)
        if lease and lease.is_of(claim) and lease.token <= token and not lease.closed(now):
            self._space.keep_lease(replace(lease.claim, ttl=claim.ttl), token, lease.since, now)
            return Kept()
        gone = why_gone(claim, token, lease, counter, now)
        if gone is None:
            self._space.keep_lease(claim, token, renewal.since, now)
            self._space.keep_counter(claim.key, replace(counter, token=token), now)
        return gone or Kept(reinstated=True)

    def _free(self, claim: Claim, token: int, lease: Lease | None, now: float) -> None:
        counter = self._counter(claim.key, now)
        newest = max(counter.token, token, lease.token) if lease else max(counter.token, token)
        if not (lease or token):
            newest = _next_token(counter, now)
        self._space.leases.pop(claim.key, None)
        freed = replace(counter, token=newest, released=claim.owner, released_at=now)
        self._space.keep_counter(claim.key, freed, now)

    def _remember(self, claim: Claim, ending: Ending, now: float, holder: Holder | None = None) -> None:
        marker = Marker(ending, claim.owner, now, now + claim.retention, holder=holder)
        self._space.keep_marker(claim.key, claim.delivery, marker)

    def _note(self, note: Note, now: float) -> None:
        known = self._space.marker(note.key, note.delivery, now)
        marker = known or Marker(Ending(note.how), "", now, now + note.retention)
        complete = replace(marker, ending=Ending(marker.ending.how), noted=True)
        self._space.keep_marker(note.key, note.delivery, complete)


def steady_wall_clock() -> Clock:
    """Seconds since the epoch that never step: the wall clock of now, carried on by the steady one."""
    steady = steady_clock()
    offset = time.time() - steady()
    return lambda: offset + steady()


def _next_token(counter: Counter, now: float) -> int:
    return max(counter.token + 1, _microseconds(now))


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _check(claim: Claim) -> None:
    check_seconds("ttl", claim.ttl)
    if claim.delivery:
        check_seconds("retention", claim.retention)
    if claim.lost_delay:
        check_seconds("lost_delay", claim.lost_delay)
    if claim.record:
        check_seconds("record_retention", claim.record_retention)
