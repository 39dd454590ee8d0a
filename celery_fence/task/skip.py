"""
Ending a message as skipped: final, without its body, and nobody waits for ever.

Stored as SUCCESS, since any other state makes ``get()`` hang, with a record that
says what happened. Chords and groups count it; the event says SKIPPED.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.canvas import group, maybe_signature
from celery.exceptions import Ignore
from celery.utils.functional import maybe_list

from celery_fence.errors import FenceError
from celery_fence.locking.keys import signature_of
from celery_fence.task.endings import stores_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_fence.locking.policies import SkipRun
    from celery_fence.locking.store import Holder
    from celery_fence.task.run import Run

MARK = "celery_fence"


class Skipped(Ignore, Exception):
    """Tells Celery that the message has ended; *record* is the stored value, *reason* what people read."""

    def __init__(self, record: Any = None, reason: str = "") -> None:
        super().__init__(record, reason)
        self.record = record
        self.reason = reason


def skip_record(run: Run, holder: Holder | None) -> dict[str, Any]:
    """What is stored for a skipped message: one flat object of plain JSON types; `is_skipped` recognises it."""
    record: dict[str, Any] = {
        MARK: "skipped",
        "reason": "held" if holder is not None else "store_unavailable",
        "key": run.subject,
        "task": run.task.name,
        "task_id": run.task_id,
    }
    if holder is not None:
        record |= {
            "holder_task": holder.facts.task_name,
            "holder_task_id": holder.facts.task_id,
            "holder_host": holder.facts.host,
            # 0 where something that isn't ours stands in the place of the lease
            "since": datetime.fromtimestamp(holder.since, tz=UTC).isoformat() if holder.since else None,
        }
        if holder.ttl_left is None:
            record["holder_ttl"] = "NO-TTL"  # made by hand: only an operator will free it
    return record


def is_skipped(value: object) -> bool:
    """Whether a task's result is the record of a skip: ``is_skipped(result.get())``."""
    return isinstance(value, dict) and value.get(MARK) == "skipped"


def skip(run: Run, decision: SkipRun, holder: Holder | None) -> Skipped:
    """Store the skip, count it for its chord, end or continue its chain; returns what to raise."""
    task, request = run.task, run.task.request
    record = skip_record(run, holder)
    value = _own_result(run, decision.result) if decision.has_result else record
    run.skipping = True
    if decision.chain == "continue":
        _send_what_follows(task, request, value)
    else:
        _end_chain(run, value)
    _store(run, value)
    why = (
        "the lease store is out of reach"
        if holder is None
        else f"held by {holder.facts.task_name or holder.owner}"
    )
    return Skipped(value, f"skipped: {run.subject}, {why}")


def answer(run: Run, value: Any, reason: str) -> Skipped:
    """
    End the message with the result that its work had when it was done before; returns what to raise.

    That is its result: links run, and chain, chord and group go on with it.
    """
    run.skipping = True
    _send_what_follows(run.task, run.task.request, value)
    _store(run, value)
    return Skipped(value, reason)


def _store(run: Run, value: Any) -> None:
    """Store *value* as the result, and count it for its chord, as Celery does after a success."""
    task, request = run.task, run.task.request
    if not request.is_eager or task.store_eager_result:
        task.backend.mark_as_done(request.id, value, request, stores_result(run))


def _own_result(run: Run, result: Any) -> Any:
    """
    The policy's result; a callable makes it from the bound arguments.

    One that raises makes the message a FAILURE: there is nothing that could be stored in its place.
    """
    if not callable(result):
        return result
    signature = signature_of(run.task.run, without=run.options.inject_as)
    bound = signature.bind(*run.args, **run.kwargs)
    bound.apply_defaults()
    try:
        return result(dict(bound.arguments))
    except Exception as error:  # the user's code: whatever it raises, there is no result
        raise FenceError(
            f"Skip(result=...) of task {run.task.name!r} failed: {type(error).__name__}: {error}. The body didn't run, "
            f"since the key {run.subject!r} was held."
        ) from error


def _send_what_follows(task: Any, request: Any, value: Any) -> None:
    """Links and the next step of the chain, as Celery sends them after a success."""
    family = {"parent_id": request.id, "root_id": request.root_id or request.id}
    links = [maybe_signature(link, app=task.app) for link in request.callbacks or ()]
    plain = [link for link in links if not isinstance(link, group)]
    for link in [link for link in links if isinstance(link, group)] + plain:
        link.apply_async((value,), **family)
    if request.chain:
        following = maybe_signature(request.chain[-1], app=task.app)
        following.apply_async((value,), chain=request.chain[:-1], **family)


def _end_chain(run: Run, value: Any) -> None:
    """
    The steps that will not run end with the same value; the last one's chord part is counted.

    So do links under a fixed task id: somebody may wait for them, and with Celery's
    message protocol 1 they are what a chain is made of.
    """
    task, request = run.task, run.task.request
    if request.is_eager:
        return
    steps: deque[Mapping[str, Any]] = deque([*(request.chain or ()), *_awaited(request.callbacks)])
    while steps:
        step = steps.popleft()
        steps.extend(_inner_steps(step))
        ended = Context(step)
        ended.update(ended.options)
        ended.id = ended.options.get("task_id")
        ended.group = ended.options.get("group_id")
        steps.extend(_awaited(ended.options.get("link")))
        if ended.id is not None:
            task.backend.mark_as_done(ended.id, value, ended, stores_result(run))


def _awaited(links: Any) -> list[Mapping[str, Any]]:
    """The links that have a fixed task id."""
    return [link for link in maybe_list(links) or () if (link.get("options") or {}).get("task_id")]


def _inner_steps(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The steps whose results a complex step stands for: a group's tasks, a chord's body, a chain's tasks."""
    arguments = step.get("kwargs") or {}
    match step.get("subtask_type"):
        case "group" | "chain":
            return list(arguments.get("tasks") or ())
        case "chord":
            body = arguments.get("body")
            return [body] if body is not None else []
        case _:
            return []
