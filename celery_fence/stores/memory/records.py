"""The idempotency records in this process; those of a run ride in its acquire and release."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from celery_fence.errors import ConfigError
from celery_fence.locking.records import ClaimedElsewhere, Done, Record
from celery_fence.locking.store import Claim, Ending
from celery_fence.stores.memory.answers import refused_by
from celery_fence.stores.memory.space import Space


class MemoryRecords:
    """The power `Recording` of a store with these two."""

    _space: Space
    _clock: Callable[[], float]

    def claim_record(self, claim: Claim, token: int) -> Done | ClaimedElsewhere | None:
        """As `Recording.claim_record`."""
        check_seconds("record_retention", claim.record_retention)
        with self._space.lock:
            now = self._clock()
            known = self._space.record(claim.record, now)
            refused = refused_by(known, claim.key)
            if refused is None and known is not None and known.token > token:
                refused = ClaimedElsewhere(known)
            if refused is None:
                self.keep_claim(claim, token, now, now)
            return refused

    def end_record(self, claim: Claim, token: int, ending: Ending | None) -> None:
        """As `Recording.end_record`."""
        check_seconds("record_retention", claim.record_retention)
        with self._space.lock:
            self.keep_end(claim, token, ending, self._clock(), again=True, rightful=False)

    def record(self, key: str) -> Record | None:
        """As `Recording.record`."""
        with self._space.lock:
            return self._space.record(key, self._clock())

    def records(self) -> Iterator[Record]:
        """As `Recording.records`."""
        with self._space.lock:
            now = self._clock()
            known = [self._space.record(key, now) for key in self._space.records]
        yield from (replace(record, value=None) for record in known if record)

    def delete_record(self, key: str, owner: str | None = None) -> Record | None:
        """As `Recording.delete_record`."""
        with self._space.lock:
            record = self._space.record(key, self._clock())
            if owner is None or (record and record.owner == owner and record.done is None):
                self._space.records.pop(key, None)
            return replace(record, value=None) if record else None

    def keep_claim(self, claim: Claim, token: int, since: float, now: float) -> None:
        """Claim the record from now on, unless its work is done; whoever asks holds the lock."""
        known = self._space.record(claim.record, now)
        if claim.record and (known is None or known.done is None):
            record = Record(claim.record, claim.key, claim.owner, token, claim.facts, claimed=since)
            self._space.keep_record(record, now, claim.record_retention)

    def keep_end(
        self, claim: Claim, token: int, ending: Ending | None, now: float, *, again: bool, rightful: bool
    ) -> None:
        """Complete the record of a body that returned, unless another has its claim; drop that of any other."""
        known = self._space.record(claim.record, now)
        if not claim.record or (known and known.done is not None):
            return
        ours = known is not None and known.owner == claim.owner
        if ending and ending.how == "returned" and (ours or rightful or (again and known is None)):
            mark = known if known and ours else None
            mark = mark or Record(claim.record, claim.key, claim.owner, token, claim.facts, claimed=now)
            size = None if ending.result is None else len(ending.result)
            done = replace(mark, done=now, value=ending.result, size=size)
            self._space.keep_record(done, now, claim.record_retention)
        elif ours:
            self._space.records.pop(claim.record, None)


def check_seconds(name: str, seconds: float) -> None:
    """Raise `ConfigError` if *seconds* can't be a time that something is kept."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"the {name} of a lease must be a number of seconds above 0, not {seconds!r}")
