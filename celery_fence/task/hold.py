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

from celery import current_app, current_task
from celery._state import _get_active_apps
from celery.canvas import Signature

from celery_fence.errors import ConfigError, Contended, StoreUnavailable
from celery_fence.locking import current, events
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.keys import render_template
from celery_fence.locking.lease import Lease, NullLease
from celery_fence.locking.locker import Terms
from celery_fence.locking.store import Claim, DeliveryEnded, Facts, Held
from celery_fence.task import given as rules
from celery_fence.task.deaths import SHARE
from celery_fence.task.given import Given
from celery_fence.task.install import is_installed, runtime, terms_of
from celery_fence.task.interrupt import interrupter
from celery_fence.task.limits import checked_ttl
from celery_fence.task.options import TaskOptions
from celery_fence.task.outcomes import describe
from celery_fence.task.run import without_token
from celery_fence.task.settings import FenceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T", bound=Lease | NullLease)

FALLBACK = "default"
"""The name of the app that Celery makes up in a thread where there is none."""

SHORTEST_POLL = 0.05
LONGEST_POLL = 0.5


@contextmanager
def hold(
    key: str | Signature,
    values: Mapping[str, Any] | None = None,
    *,
    ttl: float | None = None,
    wait: float = 0.0,
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

    Raises:
        Contended: the key wasn't free within *wait*. Where it leaves the body of a
            fenced task, the task's miss policy follows.
        StoreUnavailable: the store didn't answer.
        LockKeyError: the key can't be built from the values.

    """
    app = app or _app_of(key)
    rendered, own_ttl, terms = _resolve(key, values, app)
    seconds = own_ttl if ttl is None else checked_ttl(app, Given("hold(ttl=...)", ttl))
    patience = rules.seconds(Given("hold(wait=...)", wait), least=0.0)
    asking = Asking(app, rendered, seconds, terms, source=_source(app))
    yield from _lent(asking, None, lambda: asking.take(wait=patience))


@contextmanager
def lease_for_call(task: Any, options: TaskOptions, args: Any, kwargs: Any) -> Iterator[Lease | NullLease]:
    """The lease for a direct call of *task*; the null lease where its outage policy is ``run``."""
    if options.lock_key is None:
        raise ConfigError(f"Task {task.name!r} has no lock_key.")
    key = options.lock_key.render(args, without_token(task.name, kwargs, options.inject_as))
    asking = Asking(task.app, key, options.ttl, terms_of(options), source=task)
    yield from _lent(asking, task, lambda: _take_or_go_without(asking, task, options))


def _lent(asking: Asking, task: Any, take: Callable[[], T]) -> Iterator[T]:
    """Take the lease, be under it, and give it back, even if a soft time limit strikes while it is given back."""
    try:
        lease = take()
        with current.entered(current.Frame(lease, task, _run_here())):
            yield lease
    finally:
        try:
            asking.give_back()
        finally:
            asking.give_back()  # does nothing if the first one came to its end


def _take_or_go_without(asking: Asking, task: Any, options: TaskOptions) -> Lease | NullLease:
    try:
        return asking.take()
    except StoreUnavailable as error:
        if options.outage_policy != "run":
            raise
        runtime(task.app).emit(events.RanUnfenced(task, asking.key, "", error))
        return NullLease()


class Asking:
    """One wish for one key, and the lease that came of it; `give_back` is safe whatever happened before."""

    def __init__(self, app: Any, key: str, ttl: float, terms: Terms, *, source: Any) -> None:
        self.key = key
        self._app = app
        self._ttl = ttl
        self._terms = terms
        self._source = source
        self._lease: Lease | None = None

    def take(self, *, wait: float = 0.0) -> Lease:
        """
        The lease on the key, or the one that this very execution has already.

        A held key is asked for again, at growing intervals of at most half a second,
        until *wait* seconds have passed. Raises `Contended` or `StoreUnavailable`.
        """
        held = current.held_here(self.key, FenceSettings.of(self._app).place)
        if held is not None:
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
        """Release the lease, if one was taken here and wasn't given back before."""
        if self._lease is not None:
            runtime(self._app).locker(self._ttl).release(self._lease)
            self._lease = None

    def _ask(self, *, waited: float) -> Lease | Held:
        facts = Facts(
            task_name=getattr(self._source, "name", "") or "",
            task_id=_task_id(),
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        answer = (
            runtime(self._app)
            .locker(self._ttl)
            .acquire(
                Claim(self.key, _owner_here(), self._ttl, facts),
                source=self._source,
                terms=self._terms,
                waited=waited,
                into=self._keep,
                on_lost=_interrupter_here(),
            )
        )
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


def _app_of(key: str | Signature) -> Any:
    """The task's own app, the running task's, Celery's current one, or the only one that has fenced tasks."""
    if isinstance(key, Signature):
        return key.app
    for frame in reversed(current.frames()):
        if frame.task is not None:
            return frame.task.app
    here = current_app._get_current_object()  # noqa: SLF001 - the app behind Celery's proxy
    if here.main != FALLBACK:
        return here
    fenced = [each for each in _get_active_apps() if is_installed(each) and each.main != FALLBACK]
    if len(fenced) == 1:
        return fenced[0]
    raise ConfigError(
        "hold() finds no Celery app in this thread: Celery keeps its current app for each thread. "
        "Pass app=..., or call app.set_default() where the app is made."
    )


def _source(app: Any) -> Any:
    """Who the events of a hold are from: the task it is in, else the app."""
    return next((frame.task for frame in reversed(current.frames()) if frame.task is not None), app)


def _wrong_values(key: object, values: object) -> str:
    if isinstance(key, str):
        return f"hold({key!r}) takes the values of its placeholders as a mapping, such as {{'id': 7}}, not {values!r}."
    return "hold() takes values beside a template only: a signature has its own arguments."


def _resolve(key: str | Signature, values: Mapping[str, Any] | None, app: Any) -> tuple[str, float, Terms]:
    if values is not None and not (isinstance(key, str) and isinstance(values, Mapping)):
        raise ConfigError(_wrong_values(key, values))
    if isinstance(key, str):
        settings = FenceSettings.of(app)
        terms = Terms(settings.renew_fraction, settings.max_hold)
        return render_template(key, values or {}), settings.ttl, terms
    if not isinstance(key, Signature):
        got = (
            f"the task itself: write hold({key.name}.s(...))"
            if hasattr(key, "lease_holder")
            else type(key).__name__
        )
        msg = f"hold() takes a key template or the signature of a fenced task, not {got}."
        raise ConfigError(msg)
    task = app.tasks.get(key.task)
    options = TaskOptions.of(task) if task is not None and hasattr(task, "lease_holder") else None
    if options is None or options.lock_key is None:
        raise ConfigError(f"hold() got a signature of {key.task!r}, which is not a fenced task of this app.")
    return options.lock_key.render(key.args or (), key.kwargs or {}), options.ttl, terms_of(options)
