"""One execution of a fenced task, from the moment its lease is asked for until it has ended."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from celery.exceptions import SoftTimeLimitExceeded

from celery_fence.errors import AlreadyDone, Contended, LeaseLost, StaleToken
from celery_fence.locking.lease import Lease
from celery_fence.locking.null_lease import NullLease
from celery_fence.locking.store import Claim, Ending, Facts, Gone
from celery_fence.task.delivery import Delivery
from celery_fence.task.injection import without_token
from celery_fence.task.install import runtime
from celery_fence.task.interrupt import Body, is_of_a_stop
from celery_fence.task.notes import HEADER, RUN, wall_clock
from celery_fence.task.options import TaskOptions
from celery_fence.task.slot import slot_in

if TYPE_CHECKING:
    from celery_fence.locking.records import Done
    from celery_fence.locking.store import ReleaseAnswer

logger = logging.getLogger(__name__)
PATIENCE = 5.0
"""Seconds for which a run that fails with its lease lost waits to hear whether a copy took over its message."""

Refusal: TypeAlias = LeaseLost | Contended | StaleToken | AlreadyDone
"""What the fence ends a body with."""


class Run:
    """
    The lease of one execution and what became of it.

    Lives in the request, which dies with the execution; nothing is kept on the
    task, which all executions of a process share.
    """

    key = ""
    record_key = ""
    """The idempotency key; empty for work that may be repeated."""
    subject = ""
    """The key that a miss is about: the run's own, or that of a block in its body."""
    lease: Lease | NullLease | None = None
    borrowed = False
    """The lease is that of the execution around this one, which releases it."""
    claimed = False
    """Its record was claimed under a borrowed lease, and has to be ended before that is released."""
    entered = False
    awaits_body = False
    """A base class's `__call__` runs under the lease and is to call ours."""
    released = False
    answer: ReleaseAnswer | None = None
    if_held = ""
    """The terminal decision that a miss would lead to."""
    ended = ""
    """How the delivery ended; empty while it hasn't, or where it is to come again."""
    skipping = False
    remembered = False
    """The store knows how it ended, from the release or the acquire."""
    owes = False
    """The store hasn't answered the release, which the heartbeat makes up for: no more is asked of it here."""
    outcome_stored = False
    mute = False
    """That the message comes back isn't to be stored: the result backend is away, or has its outcome."""
    out_of_time = False
    """Its soft time limit has struck before the body, which therefore mustn't begin."""
    told = False
    """That the message comes back is stored, or isn't to be: Celery is not to store it again."""
    completes: Ending | None = None
    """The end of an earlier copy, whose epilogue this run completes."""

    def __init__(self, task: Any, request: Any, args: Any, kwargs: Any) -> None:
        handed = request.get(RUN)
        self.handed: dict[str, Any] = handed if isinstance(handed, dict) else {}
        self.task = task
        self.options = TaskOptions.of(task)
        self.delivery = Delivery.of(task.name, request)
        self.notes = self.delivery.notes
        self.task_id = self.delivery.task_id
        self.owner: str = self.handed.get("owner") or uuid.uuid4().hex
        self.now = wall_clock()
        self.args = args
        self.kwargs = without_token(task.name, kwargs, self.options.inject_as)
        self.body = Body()
        self._slot = slot_in(request)
        self.identity = "" if request.is_eager or not self.notes.delivery else self.delivery.identity
        """By which the end of the delivery is remembered; empty where it can't be."""
        self.followers: Counter[str] = Counter()

    @property
    def fenced(self) -> bool:
        """Whether the task has a key at all."""
        return self.options.lock_key is not None

    def render(self) -> str:
        """The key of this execution. `LockKeyError` if it or the idempotency key can't be built from the arguments."""
        rule, once = self.options.lock_key, self.options.idempotency_key
        if rule is not None and not self.key:
            self.record_key = once.render(self.args, self.kwargs, slot=self._slot) if once is not None else ""
            self.key = self.subject = rule.render(self.args, self.kwargs)
        return self.key

    def claim(self) -> Claim:
        """What is asked of the store for this execution."""
        return Claim(
            key=self.key,
            owner=self.owner,
            ttl=self.options.ttl,
            facts=self._facts(),
            delivery=self.identity,
            message=self.delivery.message,
            if_held=self.if_held,
            retention=self.options.settings.done_retention,
            lost_delay=self.options.lost_delay,
            record=self.record_key,
            record_retention=self.options.settings.record_retention,
        )

    def _facts(self) -> Facts:
        return Facts(
            task_name=self.task.name,
            task_id=self.task_id,
            delivery=self.delivery.full_id,
            retries=self.delivery.retries,
            host=self.task.request.hostname or socket.gethostname(),
            pid=os.getpid(),
        )

    def took(self, lease: Lease) -> None:
        """Note the lease before anything can interrupt: from here on it will be released."""
        self.lease = lease
        self.if_held = ""

    def end(self, ending: Ending | None, *, complete: bool = True) -> None:
        """The body has ended: release, and remember how. Not *complete*: a copy would need more than is remembered."""
        self.release(ending)
        self.ended = ending.how if ending is not None else ""
        self.remembered = self.remembered and complete

    def release(self, ending: Ending | None = None, *, marked: bool = True) -> None:
        """
        Give the lease back, once, and have the store remember how the delivery ended, if *marked*, and the record.

        What the store answered is kept for who decides what follows. Noted as done
        only afterwards: where something strikes on the way, the net under `__call__` does
        it again. A soft time limit that strikes while the store is asked comes too late: the
        body is over and its outcome stands, and the heartbeat makes up for the release.
        """
        if self.released or not isinstance(self.lease, Lease):
            return
        if self.borrowed:
            self._end_record(self.lease, ending)
            return
        locker = runtime(self.task.app).locker(self.options.ttl)
        told = ending if self.identity or self.record_key else None
        delivery = self.identity if marked else ""
        try:
            self.answer = locker.release(self.lease, told, delivery, patience=self._patience(ending))
        except SoftTimeLimitExceeded:
            locker.release_later(self.lease, told, delivery)
        self.owes = self.answer is None
        self.remembered = ending is not None and not self.owes
        self.released = True

    def _patience(self, ending: Ending | None) -> float:
        """
        Seconds for which a store that doesn't answer is waited for.

        A failure is the last word on a message. Where the lease was lost, a copy may work on it, or have done
        it: only the store can say.
        """
        lost = isinstance(self.lease, Lease) and self.lease.lost
        return PATIENCE if lost and self.identity and ending is not None and ending.how == "failed" else 0.0

    def let_go(self) -> None:
        """Have a lease that may have been granted given back, without waiting for the store."""
        lease, self.lease = self.lease, None
        if isinstance(lease, Lease) and not lease.ended:
            runtime(self.task.app).locker(self.options.ttl).release_later(lease)

    def claim_record(self, held: Lease) -> Done | None:
        """Claim the record of this run under the lease of the execution around it; `Done` where its work was done."""
        locker = runtime(self.task.app).locker(self.options.ttl)
        done = locker.claim_record(held, self.claim())
        self.claimed = done is None
        return done

    def _end_record(self, held: Lease, ending: Ending | None) -> None:
        if self.claimed:
            runtime(self.task.app).locker(self.options.ttl).end_record(held, self.claim(), ending)
            self.claimed = False

    def refusal_in(self, error: BaseException) -> Refusal | None:
        """
        *error*, if the fence has ended the body with it: a loss, a miss, a refused write, work that was done before.

        A stale token that isn't the run's, such as one in a message it looks at, is the
        body's own business, and so is other work than the run's own that was done.
        """
        if isinstance(error, AlreadyDone):
            return error if self.record_key and error.record == self.record_key else None
        if isinstance(error, StaleToken):
            own = self.lease.token if self.lease is not None else None
            return error if own is not None and error.token == own else None
        if isinstance(error, LeaseLost | Contended):
            return error
        lost = self.body.lost
        return lost.loss() if lost is not None and is_of_a_stop(error) else None

    @property
    def in_epilogue(self) -> bool:
        """Whether the delivery has ended and what follows is published and stored: it may be done again by a copy."""
        return bool(self.identity) and (self.ended == "returned" or self.skipping)

    @property
    def succeeded_by_copy(self) -> bool:
        """Whether a copy of this very message took the key over, or has ended it: the result is its business."""
        answer = self.answer
        if answer is None or answer.ended:
            return answer is not None
        holder = answer.holder if isinstance(answer, Gone) else None
        return holder is not None and self.delivery.is_copy_of(holder)


def run_of(request: Any) -> Run | None:
    """The run that was begun for *request*, if any."""
    found = request.__dict__.get(RUN)
    return found if isinstance(found, Run) else None


def clear_notes(request: Any, run: Run) -> None:
    """The wait is over: what counts it must not travel on with the task's own retries."""
    if request.headers:
        request.headers = {
            **{name: value for name, value in request.headers.items() if name != RUN},
            HEADER: run.notes.cleared().header(),
        }


def release_what_is_left(run: Run) -> None:
    """
    The net under `__call__`: release what a run still holds when Celery is done with it.

    It finds something only where the body was never entered, such as after an
    exception in a base class's `before_start`.
    """
    if run.awaits_body and run.ended == "returned":
        logger.warning(
            "Task %s ended without its function: a base class overrides __call__ and must call "
            "super().__call__(*args, **kwargs).",
            run.task.name,
        )
    run.release()
