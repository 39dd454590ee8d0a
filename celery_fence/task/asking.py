"""One wish for a key outside a message of its own: of a block, or of a direct call."""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any

from celery import current_task
from celery.exceptions import SoftTimeLimitExceeded

from celery_fence.errors import Contended, StoreUnavailable
from celery_fence.locking import current
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.lease import Lease, unstopped
from celery_fence.locking.records import Done
from celery_fence.locking.store import Claim, DeliveryEnded, Facts, Held
from celery_fence.task import repeats
from celery_fence.task.deaths import SHARE
from celery_fence.task.install import runtime
from celery_fence.task.interrupt import interrupter
from celery_fence.task.outcomes import describe
from celery_fence.task.settings import FenceSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_fence.locking.locker import Terms
    from celery_fence.locking.store import Ending

SHORTEST_POLL = 0.05
LONGEST_POLL = 0.5


class Asking:
    """One wish for one key, and the lease that came of it; `give_back` is safe whatever happened before."""

    def __init__(
        self, app: Any, key: str, ttl: float, terms: Terms, *, source: Any, record: str = ""
    ) -> None:
        self.key = key
        self.record = record
        self.ending: Ending | None = None
        self._app = app
        self._ttl = ttl
        self._terms = terms
        self._source = source
        self._lease: Lease | None = None
        self._claimed_under: Lease | None = None

    def take(self, *, wait: float = 0.0) -> Lease:
        """
        The lease on the key, or the one that this very execution has already.

        A held key is asked for again, at growing intervals of at most half a second,
        until *wait* seconds have passed. Raises `Contended` or `StoreUnavailable`, and
        `AlreadyDone` where the work of its record is done.
        """
        if self._lease is not None and not self._lease.lost:
            return self._lease
        held = current.held_here(*self.tag)
        if held is not None:
            self._claim_under(held)
            return held
        clock = steady_clock()
        asked_at, tries = clock(), 0
        while True:
            answer = self._ask(waited=clock() - asked_at)
            if isinstance(answer, Lease):
                return answer
            left = asked_at + wait - clock()
            if left <= 0:
                raise self._contended(answer, wait)
            time.sleep(min(_pause(answer, tries), left))
            tries += 1

    def give_back(self) -> None:
        """
        Release the lease, if one was taken here and wasn't given back before; end the record in any case.

        Where the soft time limit of the task around it strikes meanwhile, the heartbeat makes up
        for the release: there is no time to ask again.
        """
        locker = runtime(self._app).locker(self._ttl)
        if self._lease is not None:
            try:
                locker.release(self._lease, self.ending)
            except SoftTimeLimitExceeded:
                locker.release_later(self._lease, self.ending)
                self._lease = None
                raise
            self._lease = None
        if self._claimed_under is not None:
            locker.end_record(self._claimed_under, self._claim(), self.ending)
            self._claimed_under = None

    def take_over(self, earlier: Asking) -> None:
        """Have the lease of an *earlier* asking for the same key, which then gives nothing back."""
        self._lease, earlier._lease = earlier._lease, None

    @property
    def has_lease(self) -> bool:
        """Whether a lease was taken here and wasn't given back."""
        return self._lease is not None

    @property
    def tag(self) -> tuple[str, object]:
        """The key, and the store it is in."""
        return self.key, FenceSettings.of(self._app).place

    def _claim_under(self, held: Lease) -> None:
        """
        Claim the record of a direct call under the lease of the execution that makes it: nothing is acquired.

        Not of one that is a part of the same work: that isn't done before the run around it returns.
        """
        if not self.record or self._claimed_under is not None or current.works_on(self.record):
            return
        done = runtime(self._app).locker(self._ttl).claim_record(held, self._claim())
        if done is not None:
            raise repeats.done_before(self._app, done.record)
        self._claimed_under = held

    def _claim(self) -> Claim:
        facts = Facts(
            task_name=getattr(self._source, "name", "") or "",
            task_id=_task_id(),
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        return Claim(
            self.key,
            _owner_here(),
            self._ttl,
            facts,
            record=self.record,
            record_retention=FenceSettings.of(self._app).record_retention,
        )

    def _ask(self, *, waited: float) -> Lease | Held:
        answer = (
            runtime(self._app)
            .locker(self._ttl)
            .acquire(
                self._claim(),
                source=self._source,
                terms=self._terms,
                waited=waited,
                into=self._keep,
                stop=_interrupter_here(),
            )
        )
        if isinstance(answer, Done):
            raise repeats.done_before(self._app, answer.record)
        if isinstance(answer, DeliveryEnded):
            raise StoreUnavailable(
                f"The store spoke of a delivery that wasn't asked about, for {self.key!r}."
            )
        return answer

    def _keep(self, lease: Lease) -> None:
        self._lease = lease

    def _contended(self, held: Held, wait: float) -> Contended:
        within = f" and wasn't free within {wait:g} s" if wait else ""
        return Contended(
            f"{self.key!r} is held by {describe(held.holder)}{within}.",
            key=self.key,
            holder=held.holder,
            waited=wait,
        )


def _pause(held: Held, tries: int) -> float:
    """Seconds until the next try: from 50 ms, half as long again each time, jittered, not past the holder's expiry."""
    pause = min(SHORTEST_POLL * 1.5 ** min(tries, 10), LONGEST_POLL) * (0.75 + random.random() / 2)
    left = held.holder.ttl_left
    return pause if left is None else max(min(pause, left), SHORTEST_POLL)


def run_here() -> Any:
    """The run whose body this code is in, if any."""
    return next((frame.run for frame in reversed(current.frames()) if frame.run is not None), None)


def _owner_here() -> str:
    """A fresh owner; within a run it begins with the run's, so that the main process finds it after a kill."""
    run, fresh = run_here(), uuid.uuid4().hex
    return fresh if run is None else f"{run.owner}{SHARE}{fresh}"


def _interrupter_here() -> Callable[[Lease], None]:
    """Within a fenced task, losing the lease of a block stops the run as losing its own would."""
    run = run_here()
    if run is None or run.options.lost_policy == "flag":
        return unstopped
    return interrupter(run.body)


def _task_id() -> str:
    task = current_task._get_current_object() if current_task else None  # noqa: SLF001 - behind Celery's proxy
    return str(task.request.id or "") if task is not None else ""
