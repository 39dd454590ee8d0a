"""`hold`: a lease around a block, inside a task or anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from celery.canvas import Signature

from celery_fence.errors import AlreadyDone, ConfigError, StoreUnavailable
from celery_fence.fencing.transactions import transactions_of
from celery_fence.locking import current, events
from celery_fence.locking.lease import Lease
from celery_fence.locking.null_lease import NullLease
from celery_fence.task import endings, repeats
from celery_fence.task import given as rules
from celery_fence.task.asking import Asking, run_here
from celery_fence.task.given import Given
from celery_fence.task.holdable import app_of, resolve
from celery_fence.task.injection import without_token
from celery_fence.task.install import runtime, terms_of
from celery_fence.task.limits import checked_ttl
from celery_fence.task.options import TaskOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_fence.fencing.transactions import Transactions

T = TypeVar("T", bound=Lease | NullLease)


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
        with current.entered(current.Frame(lease, task, run_here(), record=record)):
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


def _source(app: Any) -> Any:
    """Who the events of a hold are from: the task it is in, else the app."""
    return next((frame.task for frame in reversed(current.frames()) if frame.task is not None), app)
