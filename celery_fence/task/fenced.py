"""`FencedTask`: a Celery task that runs under a lease on its business key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task, states
from celery.result import EagerResult

from celery_fence.errors import AlreadyDone, LeaseLost, StaleToken
from celery_fence.locking import current
from celery_fence.locking.lease import Lease
from celery_fence.locking.null_lease import NullLease
from celery_fence.task import ended_copies, endings, losses, outcomes, repeats
from celery_fence.task.binding import PastAutoretry, bind_task, fences
from celery_fence.task.django import OnCommit
from celery_fence.task.injection import injected
from celery_fence.task.install import runtime
from celery_fence.task.interrupt import interruptible
from celery_fence.task.notes import RUN
from celery_fence.task.options import TaskOptions
from celery_fence.task.run import Run, clear_notes, run_of
from celery_fence.task.skip import Skipped
from celery_fence.task.taking import take_lease
from celery_fence.task.told import RetryToldOnce

if TYPE_CHECKING:
    from celery_fence.locking.policies import Miss
    from celery_fence.locking.store import Ending, Holder
    from celery_fence.task.run import Refusal


class FencedTask(OnCommit, RetryToldOnce, Task):
    """
    Takes a lease on `lock_key` before the body runs, keeps it, and gives it back.

    ``@app.task(base=FencedTask, lock_key="tenant:<tenant_id>:sync")``; the body gets
    the fencing token as ``fencing_token`` if it names such a parameter. Options are
    class attributes: see docs/options.md. What a held key does to a message is the
    `miss_policy`.
    """

    abstract = True
    Request = "celery_fence.task.request:FencedRequest"

    lock_key: ClassVar[Any] = None
    _tells_started: ClassVar[bool] = False

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the task's options and connect what is needed to *app*, once."""
        super().on_bound(app)
        bind_task(cls, app)
        # Told in `_begin`: a copy of a failed delivery must not write STARTED over its outcome, as the tracer would.
        cls._tells_started = bool(cls.track_started or cls._tells_started)
        cls.track_started = False

    # --- what users call -------------------------------------------------------------------

    @property
    def lease(self) -> Lease | NullLease | None:
        """The lease of THIS execution; a null lease where the body runs without one; None outside of a body."""
        return current.lease_of(self)

    @property
    def record_key(self) -> str | None:
        """The idempotency key of THIS execution, to be handed on; None outside of a body, and for a task without."""
        return current.record_of(self)

    def lease_holder(self, *args: Any, **kwargs: Any) -> Holder | None:
        """
        Who holds the key of a call with these arguments at this moment, or None: advice, not a lock.

        Raises:
            LockKeyError: the key can't be built from these arguments.
            StoreUnavailable: the store didn't answer.

        """
        options = TaskOptions.of(self)
        if options.lock_key is None:
            return None
        return runtime(self.app).store(options.ttl).holder(options.lock_key.render(args, kwargs))

    def on_miss(self, miss: Miss, args: Any, kwargs: Any) -> None:
        """Override to be told of a miss, before its policy is carried out; *miss* has key, holder and counts."""

    def on_lease_lost(self, lease: Lease) -> None:
        """Override to be told at once when a lease is lost; called from the thread that noticed."""

    # --- what Celery calls -----------------------------------------------------------------

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Take the lease, or end the message as the policies say."""
        super().before_start(task_id, args, kwargs)
        self._begin(args, kwargs)

    @fences
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body under its lease; a direct call takes and releases one around it."""
        run = run_of(self.request)
        if run is not None and run.awaits_body:
            run.awaits_body = False
            body = self._body_of_this_run(super().__call__)
            return called(body, args, injected(kwargs, run.options.inject_as, run.lease))
        return self._call_fenced(super().__call__, args, kwargs, ours=True)

    def _call_fenced(self, following: Any, args: Any, kwargs: Any, *, ours: bool) -> Any:
        """
        Run *following* under the lease of this request, or as a direct call.

        *following* is what comes after our `__call__` (*ours*), or the `__call__` of a
        base class around it: that one runs under the lease as a whole, with whatever
        it does after the body, and is given no token.
        """
        request = self.request
        if request.called_directly:
            return self._call_directly(following, args, kwargs, inject=ours)
        run = run_of(request) or self._begin(args, kwargs)
        if run.entered:
            return self._call_directly(following, args, kwargs, inject=ours)
        run.entered, run.awaits_body = True, run.fenced and not ours
        body = self._body_of_this_run(following) if ours else following
        if not run.fenced:
            return body(*args, **kwargs)
        if run.completes is not None:
            return self._complete(run, run.completes)
        own = injected(run.kwargs, run.options.inject_as, run.lease) if ours else run.kwargs
        return self._run_fenced(run, body, args, own)

    def apply(self, *args: Any, **kwargs: Any) -> EagerResult:
        """As Celery's; a skipped run shows SUCCESS and its record, as a worker's would."""
        result = super().apply(*args, **kwargs)
        if isinstance(result, EagerResult) and isinstance(result.result, Skipped):
            return EagerResult(result.id, result.result.record, "SUCCESS", name=self.name)
        return result

    # --- one run ---------------------------------------------------------------------------

    def _body_of_this_run(self, following: Any) -> Any:
        """
        What a traced run calls: `run` itself, as Celery does for a task without a `__call__`.

        Celery's own `__call__` would push a second request in eager mode, with the
        injected token among its arguments. A user's base class in between is called.
        """
        if getattr(following, "__func__", None) is not Task.__call__:
            return following
        self.request._protected = 1  # noqa: SLF001 - as Celery's own __call__ marks it in a worker
        return self.run

    def _begin(self, args: Any, kwargs: Any) -> Run:
        """Take the lease of this request; raises what ends the message on a miss."""
        request = self.request
        run = Run(self, request, args, kwargs)
        request.__dict__[RUN] = run
        request.kwargs = run.kwargs
        if run.fenced:
            take_lease(run)
        clear_notes(request, run)
        if self._tells_started and run.completes is None:
            self._tell_started(run)
        return run

    def _tell_started(self, run: Run) -> None:
        """Store what `task_track_started` asks for, now that this run is the one that does the work."""
        request = self.request
        if not request.is_eager and endings.stores_result(run):
            who = {"pid": os.getpid(), "hostname": request.hostname}
            self.backend.store_result(run.task_id, who, states.STARTED, request=request)

    def _run_fenced(self, run: Run, body: Any, args: Any, kwargs: Any) -> Any:
        """The body under its lease, and what follows when it ends without it."""
        try:
            value = self._run_body(run, body, args, kwargs)
        except BaseException as error:
            refusal = run.refusal_in(error)
            if refusal is not None:
                raise self._after_refusal(run, refusal) from error
            run.end(endings.ending_of_error(error))
            if run.succeeded_by_copy and isinstance(error, Exception):
                raise ended_copies.superseded(run) from error
            raise
        else:
            ending = endings.ending_of_value(run, value)
            complete = endings.can_be_completed(run, ending) or ending.result is not None
            run.end(ending, complete=complete)
        finally:
            run.release()
        if run.succeeded_by_copy:
            raise ended_copies.superseded(run)
        return value

    def _complete(self, run: Run, ending: Ending) -> Any:
        """Return what the body returned before, so that Celery does what the dead process couldn't."""
        run.ended, run.remembered = ending.how, True
        if ending.value is None:
            raise endings.Finished("This delivery has returned before, and nothing needs its value.")
        return endings.remembered_value(self.app, ending.value)

    def _run_body(self, run: Run, body: Any, args: Any, kwargs: Any) -> Any:
        stoppable = not (self.request.is_eager or run.options.lost_policy == "flag")
        with (
            current.entered(
                current.Frame(
                    run.lease or NullLease(self, runtime(self.app).emit), self, run, record=run.record_key
                )
            ),
            interruptible(run.body, wanted=stoppable),
        ):
            return called(body, args, kwargs)

    def _after_refusal(self, run: Run, error: Refusal) -> Exception:
        if isinstance(error, AlreadyDone):
            return self._after_repeat(run, error)
        if isinstance(error, StaleToken):
            return losses.stale(run, error)
        if isinstance(error, LeaseLost):
            return losses.lost(run, error)
        run.release()  # what becomes of the message is decided next, so nothing is remembered yet
        if self.request.is_eager:
            return error
        return outcomes.miss(run, error.key or run.key, error.holder)

    def _after_repeat(self, run: Run, done: AlreadyDone) -> Exception:
        """The body found its own work done, as by a record in its database."""
        if repeats.is_of_this_run(done, run.lease):
            return losses.unsure(run, done)
        ending = endings.ending_of_call(self, run.record_key, done.result) if done.has_result else None
        # Not marked: a copy is to find the record, too, and to end in the same way.
        run.release(ending, marked=False)
        return repeats.end_as_done(run, done)

    def _call_directly(self, body: Any, args: Any, kwargs: Any, *, inject: bool) -> Any:
        """A call as of a function: `Contended` on a miss, the lease of the calling execution if it has the key."""
        from celery_fence.task.hold import call_under_lease

        options = TaskOptions.of(self)
        if options.lock_key is None:
            return body(*args, **kwargs)

        def under(lease: Lease | NullLease) -> Any:
            return called(body, args, injected(kwargs, options.inject_as, lease) if inject else kwargs)

        return call_under_lease(self, options, args, kwargs, under)


def called(body: Any, args: Any, kwargs: Any) -> Any:
    """What *body* returns; one of our errors that was carried past Celery's autoretry is itself again."""
    try:
        return body(*args, **kwargs)
    except PastAutoretry as carried:
        raise carried.error from carried.error.__cause__
