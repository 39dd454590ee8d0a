"""`hold`: a lease around a block, inside a task or anywhere else."""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from celery import current_task
from celery.canvas import Signature

from celery_fence.errors import AlreadyDone, ConfigError, Contended, StoreUnavailable
from celery_fence.fencing.transactions import transactions_of
from celery_fence.locking import current, events
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.lease import Lease, NullLease
from celery_fence.locking.locker import Terms
from celery_fence.locking.records import Done
from celery_fence.locking.store import Claim, DeliveryEnded, Ending, Facts, Held
from celery_fence.task import endings, repeats
from celery_fence.task import given as rules
from celery_fence.task.deaths import SHARE
from celery_fence.task.given import Given
from celery_fence.task.holdable import app_of, resolve
from celery_fence.task.install import runtime, terms_of
from celery_fence.task.interrupt import interrupter
from celery_fence.task.limits import checked_ttl
from celery_fence.task.options import TaskOptions
from celery_fence.task.outcomes import describe
from celery_fence.task.run import without_token
from celery_fence.task.settings import FenceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_fence.fencing.transactions import Transactions

T = TypeVar("T", bound=Lease | NullLease)

SHORTEST_POLL = 0.05
LONGEST_POLL = 0.5


@contextmanager
def hold(
    key: str | Signature,
    values: Mapping[str, Any] | None = None,
    *,
    ttl: float | None = None,
    wait: float = 0.0,
    until_commit: Any = None,
    app: Any = None,
) -> Iterator[Lease]:
    """
    Hold the lease on *key* within the block.

    *key* is a template with its *values*, ``hold("invoice:<id>", {"id": 7})``, or the
    signature of a fenced task, ``hold(sync_tenant.s(42))``, for the key, TTL and app
    of that task. *ttl* and *wait* are seconds; *wait* bounds how long a held key is
    asked for again, and may be longer than the TTL. A block inside an execution
    that has the key already gets the same lease. The app is the running task's,
    else Celery's current one, else *app*.

    *until_commit* is an SQLAlchemy session or Django's connection. Where it is in a
    transaction at the block's end, the lease is kept and renewed until that has been
    committed or rolled back, so that the next holder sees what was written.

    Raises:
        Contended: the key wasn't free within *wait*. Where it leaves the body of a
            fenced task, the task's miss policy follows.
        StoreUnavailable: the store didn't answer.
        LockKeyError: the key can't be built from the values.

    """
    app = app or app_of(key)
    rendered, own_ttl, terms = resolve(key, values, app)
    seconds = own_ttl if ttl is None else checked_ttl(app, Given("hold(ttl=...)", ttl))
    patience = rules.seconds(Given("hold(wait=...)", wait), least=0.0)
    asking = Asking(app, rendered, seconds, terms, source=_source(app))
    end = asking.give_back if until_commit is None else _at_end(asking, transactions_of(until_commit))
    yield from _lent(None, lambda: asking.take(wait=patience), end)


def call_under_lease(
    task: Any, options: TaskOptions, args: Any, kwargs: Any, body: Callable[[Lease | NullLease], Any]
) -> Any:
    """
    What a direct call of *task* returns: *body* under its lease; the null lease where its outage policy is ``run``.

    Work that its idempotency record says is done isn't done again: the recorded result
    is returned, or `AlreadyDone` raised where none was kept.
    """
    if options.lock_key is None:
        raise ConfigError(f"Task {task.name!r} has no lock_key.")
    own = without_token(task.name, kwargs, options.inject_as)
    once = options.idempotency_key
    asking = Asking(
        task.app,
        options.lock_key.render(args, own),
        options.ttl,
        terms_of(options),
        source=task,
        record=once.render(args, own) if once is not None else "",
    )
    lease = None
    try:
        with _lending(asking, task, options) as lease:
            value = body(lease)
            asking.ending = endings.ending_of_call(task, asking.record, value)
            return value
    except AlreadyDone as done:
        found = asking.record and done.record == asking.record and done.has_result
        if not found or repeats.is_of_this_run(done, lease):
            raise
        return done.result


@contextmanager
def _lending(asking: Asking, task: Any, options: TaskOptions) -> Iterator[Lease | NullLease]:
    take = lambda: _take_or_go_without(asking, task, options)  # noqa: E731 - as below
    yield from _lent(task, take, asking.give_back, record=asking.record)


def _lent(task: Any, take: Callable[[], T], end: Callable[[], None], *, record: str = "") -> Iterator[T]:
    """Take the lease, be under it, and end it, even if a soft time limit strikes in the middle of that."""
    try:
        lease = take()
        with current.entered(current.Frame(lease, task, _run_here(), record=record)):
            yield lease
    finally:
        try:
            end()
        finally:
            end()  # does nothing if the first one came to its end


def _at_end(asking: Asking, transactions: Transactions) -> Callable[[], None]:
    """
    What ends a block that holds until the commit: give the lease back, or leave that to the open transaction.

    An earlier block of this transaction may have left its lease on the key: that one is
    used again, and the later block's end decides about it.
    """
    kept = transactions.kept
    earlier = kept.pop(asking.tag, None)
    if earlier is not None:
        asking.take_over(earlier)

    def give_back() -> None:
        if kept.get(asking.tag) is asking:
            del kept[asking.tag]
        asking.give_back()

    def end() -> None:
        if kept.get(asking.tag) is asking:
            return
        if not asking.has_lease or not transactions.is_open():
            asking.give_back()
            return
        # `kept` and not the session itself: what waits for its end mustn't keep it alive.
        transactions.at_end(give_back)
        kept[asking.tag] = asking

    return end


def _take_or_go_without(asking: Asking, task: Any, options: TaskOptions) -> Lease | NullLease:
    try:
        return asking.take()
    except StoreUnavailable as error:
        if options.outage_policy != "run":
            raise
        runtime(task.app).emit(events.RanUnfenced(task, asking.key, "", error))
        return NullLease(task, runtime(task.app).emit)


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
        """Release the lease, if one was taken here and wasn't given back before; end the record in any case."""
        locker = runtime(self._app).locker(self._ttl)
        if self._lease is not None:
            locker.release(self._lease, self.ending)
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
                on_lost=_interrupter_here(),
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


def _run_here() -> Any:
    """The run whose body this code is in, if any."""
    return next((frame.run for frame in reversed(current.frames()) if frame.run is not None), None)


def _owner_here() -> str:
    """A fresh owner; within a run it begins with the run's, so that the main process finds it after a kill."""
    run, fresh = _run_here(), uuid.uuid4().hex
    return fresh if run is None else f"{run.owner}{SHARE}{fresh}"


def _interrupter_here() -> Callable[[Lease], None] | None:
    """Within a fenced task, losing the lease of a block stops the run as losing its own would."""
    run = _run_here()
    if run is None or run.options.lost_policy == "flag":
        return None
    return interrupter(run.body)


def _task_id() -> str:
    task = current_task._get_current_object() if current_task else None  # noqa: SLF001 - behind Celery's proxy
    return str(task.request.id or "") if task is not None else ""


def _source(app: Any) -> Any:
    """Who the events of a hold are from: the task it is in, else the app."""
    return next((frame.task for frame in reversed(current.frames()) if frame.task is not None), app)
