"""`once`: one step inside a run, whose effect is committed together with the word that it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from celery_fence.errors import AlreadyDone, ConfigError
from celery_fence.fencing.idempotency.claiming import Work, claim_work, work_of_task
from celery_fence.fencing.writer import Shown

T = TypeVar("T")


def once(
    connection: Any,
    step: str,
    call: Callable[..., T],
    *args: Any,
    key: str | None = None,
    lease: Shown | None = None,
) -> T:
    """
    What ``call(*args)`` returns, called unless this step was done before; then what it returned that time.

    The step is done when the caller's transaction commits: until then its row is locked, and
    a rollback undoes it together with what *call* wrote. It costs two round trips, or two
    where it was done before. It belongs to the running task's idempotency key, or, where the
    task has none, to its message and the retries of that; *key* names something else.

    The result is kept as Celery keeps results, so that a repeat gets, say, a list for a tuple.

    Raises:
        UnstorableResult: *call* returned what can't be kept. Roll back.
        AlreadyDone: the step was done, but its result can't be read any more.
        StaleToken, ClaimMismatch, UnfencedWrite, ConfigError: as in `claim`; *call* wasn't called.

    """
    try:
        claimed = claim_work(connection, step_of_task(step, key, lease))
    except AlreadyDone as done:
        return cast("T", result_of(done))
    return claimed.complete(call(*args))


def step_of_task(step: str, key: str | None, lease: Shown | None) -> Work:
    """The work that *step* is; `ConfigError` for one that has no name."""
    if not isinstance(step, str) or not step:
        raise ConfigError(f"once() needs the name of its step, such as 'mail:7', not {step!r}.")
    return work_of_task(key, lease, step=step)


def result_of(done: AlreadyDone) -> Any:
    """The result that *done* carries; raises it where it has none."""
    if not done.has_result:
        raise done
    return done.result
