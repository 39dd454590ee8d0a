"""One execution of a fenced task, from the moment its lease is asked for until it has ended."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from typing import TYPE_CHECKING, Any

from celery_fence.locking.lease import Lease, NullLease
from celery_fence.locking.store import Claim, Facts, Gone, Holder
from celery_fence.task.install import runtime
from celery_fence.task.interrupt import Body
from celery_fence.task.notes import HEADER, RUN, Notes
from celery_fence.task.options import TaskOptions

if TYPE_CHECKING:
    from celery_fence.locking.store import ReleaseAnswer

logger = logging.getLogger(__name__)


class Run:
    """
    The lease of one execution and what became of it.

    Lives in the request, which dies with the execution; nothing is kept on the
    task, which all executions of a process share.
    """

    def __init__(self, task: Any, request: Any, args: Any, kwargs: Any) -> None:
        handed = request.get(RUN)
        self.handed: dict[str, Any] = handed if isinstance(handed, dict) else {}
        self.task = task
        self.options = TaskOptions.of(task)
        self.notes = Notes.read(request.headers)
        self.task_id: str = request.id or ""
        self.retries: int = request.retries or 0
        self.redelivered = bool((request.delivery_info or {}).get("redelivered"))
        self.delivery = f"{request.replaced_task_nesting or 0}.{self.notes.delivery}"
        self.owner: str = self.handed.get("owner") or uuid.uuid4().hex
        self.args = args
        self.kwargs = without_token(kwargs, self.options.inject_as)
        self.key = ""
        self.lease: Lease | NullLease | None = None
        self.body = Body()
        self.borrowed = False
        self.entered = False
        self.released = False
        self.answer: ReleaseAnswer | None = None

    @property
    def fenced(self) -> bool:
        """Whether the task has a key at all."""
        return self.options.lock_key is not None

    def claim(self) -> Claim:
        """What is asked of the store for this execution."""
        rule = self.options.lock_key
        if rule is not None and not self.key:
            self.key = rule.render(self.args, self.kwargs)
        return Claim(self.key, self.owner, self.options.ttl, self._facts())

    def _facts(self) -> Facts:
        return Facts(
            task_name=self.task.name,
            task_id=self.task_id,
            delivery=self.delivery,
            retries=self.retries,
            host=self.task.request.hostname or socket.gethostname(),
            pid=os.getpid(),
        )

    def is_copy_of(self, holder: Holder) -> bool:
        """
        Whether *holder* runs the very delivery that this message is.

        A message that was published without a delivery id counts as a copy only if
        the broker flags it as redelivered.
        """
        facts = holder.facts
        mine = (self.task.name, self.task_id, self.retries, self.delivery)
        same = mine == (facts.task_name, facts.task_id, facts.retries, facts.delivery)
        return same and (bool(self.notes.delivery) or self.redelivered)

    def overtook(self, holder: Holder) -> bool:
        """Whether *holder* is the predecessor of this retry, about to release: it published us from its body."""
        facts = holder.facts
        return (
            facts.task_name == self.task.name
            and facts.task_id == self.task_id
            and bool(self.task_id)
            and facts.retries < self.retries
        )

    def took(self, lease: Lease) -> None:
        """Note the lease before anything can interrupt: from here on it will be released."""
        self.lease = lease

    def release(self) -> None:
        """
        Give the lease back, once; what the store answered is kept for who decides what follows.

        Noted as done only afterwards: where a soft time limit strikes on the way, the
        net under `__call__` does it again.
        """
        if self.released or self.borrowed or not isinstance(self.lease, Lease):
            return
        self.answer = runtime(self.task.app).locker(self.options.ttl).release(self.lease)
        self.released = True

    @property
    def succeeded_by_copy(self) -> bool:
        """Whether a copy of this very message took the key over: the result is then its business."""
        answer = self.answer
        return isinstance(answer, Gone) and answer.holder is not None and self.is_copy_of(answer.holder)


def without_token(kwargs: dict[str, Any], keyword: str | None) -> dict[str, Any]:
    """*kwargs* without a fencing token that a message should never carry."""
    if keyword is None or keyword not in kwargs:
        return kwargs
    logger.warning("A message carries %s=...: ignored, celery-fence injects its own", keyword)
    return {name: value for name, value in kwargs.items() if name != keyword}


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


def release_what_is_left(sender: Any = None, **_: Any) -> None:
    """
    The net under `__call__`: release what a run still holds when Celery is done with it.

    Connected to `task_postrun`. It finds something only where the body was never
    entered, or where a base class replaced `__call__` without calling it.
    """
    request = getattr(sender, "request", None)
    run = run_of(request) if request is not None else None
    if run is None or run.released:
        return
    if isinstance(run.lease, Lease) and not run.borrowed and not run.entered:
        logger.warning(
            "Task %s ended without entering FencedTask.__call__: the lease on %r was taken and not used. "
            "If a base class overrides __call__, it must call super().__call__(*args, **kwargs).",
            run.task.name,
            run.key,
        )
    run.release()
