"""
How a delivery ended, so that a copy of its message doesn't run the body again.

The release remembers how the body ended. Celery then publishes the links and the next
step of the chain, stores the result, counts the chord part and acknowledges: the
*epilogue*. Once that is complete it is *noted*, in the background, off the task's path.
A process may die between any two of these; the copy that the broker delivers then finds:

    noted                    it ends silently
    not noted, young         the epilogue may be under way: it comes again later
    not noted, old
      returned               the remembered value is returned again, without the body;
                             the body runs again where a value is needed and wasn't kept
      failed                 the body runs again
      skipped, dead-lettered,
      raised                 the decision is carried out again
      retried, replaced,
      ignored, rejected      it ends silently: what followed was published before

"Old" is older than the TTL. The value is kept only where a copy can come (late
acknowledgement) and something needs it. Of one that is needed and can't be kept, the
epilogue is noted at once, on the task's path, at one more call.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry
from kombu import serialization
from kombu.exceptions import EncodeError

from celery_fence.locking.policies import Fail, GiveUp, SkipRun
from celery_fence.locking.store import Ending

if TYPE_CHECKING:
    from celery_fence.locking.policies import Decision
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)

LARGEST_VALUE = 8192
"""Bytes of an encoded return value that are kept; the epilogue of a larger one is noted at once."""

LARGEST_RESULT = 65536
"""Bytes of an encoded return value that an idempotency record keeps; with a larger one it says only: done."""

REPLACED = "Replaced by new task"
"""What Celery's `Task.replace` says as it ends the replaced run."""


class Finished(Ignore, Exception):
    """Ends a copy of a delivery that has ended, epilogue and all: nothing is stored."""


def ending_of_decision(decision: Decision) -> str:
    """The name of a terminal decision on a miss; empty for one that brings the message back."""
    match decision:
        case SkipRun():
            return "skipped"
        case GiveUp():
            return "dead_lettered"
        case Fail():
            return "raised"
        case _:
            return ""


def ending_of_error(error: BaseException) -> Ending | None:
    """How a body ended that raised *error*; None where the broker is to deliver the message again."""
    match error:
        case Retry():
            return Ending("retried")
        case Reject():
            return None if error.requeue else Ending("rejected")
        case Ignore():
            return Ending("replaced" if REPLACED in str(error) else "ignored")
        case Exception():
            return Ending("failed")
        case _:
            return None  # SystemExit and the like: the process ends, the message's fate is the worker's


def ending_of_value(run: Run, value: Any) -> Ending:
    """How a body ended that returned *value*, which is kept if it is needed and can be."""
    needed = _is_needed(run) and run.options.settings.remember_results
    if not (needed or run.record_key):
        return Ending("returned")
    try:
        encoded = _encode(value, run.task.app.conf.result_serializer)
    except EncodeError as error:  # Celery will find out too, and store a failure
        if run.record_key:
            _tell_unkept(run.task, run.record_key, f"it can't be encoded ({error})")
        return Ending("returned")
    kept = encoded if needed and len(encoded) <= LARGEST_VALUE else None
    return Ending("returned", kept, _result(run.task, run.record_key, encoded))


def ending_of_call(task: Any, record_key: str, value: Any) -> Ending | None:
    """How a direct call ended that returned *value*; None where no record is to be completed."""
    if not record_key:
        return None
    try:
        encoded = _encode(value, task.app.conf.result_serializer)
    except EncodeError as error:
        _tell_unkept(task, record_key, f"it can't be encoded ({error})")
        return Ending("returned")
    return Ending("returned", result=_result(task, record_key, encoded))


def can_be_completed(run: Run, ending: Ending) -> bool:
    """Whether a copy can complete the epilogue of a body that ended so, without running it again."""
    return ending.how == "returned" and (ending.value is not None or not _is_needed(run))


def remembered_value(app: Any, value: bytes) -> Any:
    """
    The return value that `ending_of_value` kept.

    `ContentDisallowed` where the app doesn't accept its content type as a result: who can write
    to the store must not choose pickle for an app that doesn't use it.
    """
    head, _, payload = value.partition(b"\n")
    content_type, encoding = head.decode().split(";")
    conf = app.conf
    names = {conf.result_serializer, *(conf.result_accept_content or conf.accept_content or ())}
    accept = {serialization.registry.name_to_type.get(name, name) for name in names}
    body = payload if encoding == "binary" else payload.decode(encoding)
    return serialization.loads(body, content_type, encoding, accept=accept)


def followers_delivery(run: Run, task: str, task_id: str) -> str:
    """
    The delivery id of a message that *run*'s epilogue publishes under a fixed task id.

    The same when the epilogue is completed a second time after a crash, so the next
    step of a chain is recognised as a copy and doesn't run twice. Several messages
    under one id are counted: each is a delivery of its own.
    """
    which = f"{task}|{task_id}"
    run.followers[which] += 1
    text = f"{run.identity}>{which}>{run.followers[which]}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_awaited(run: Run) -> bool:
    """Whether anything is made of the result of *run*: it is stored, or something follows from it."""
    request = run.task.request
    return bool(request.callbacks or request.chain or request.chord or stores_result(run))


def stores_result(run: Run) -> bool:
    """Whether the state and the result of *run* are stored, by the message's word or the task's."""
    ignored = run.task.request.__dict__.get("ignore_result")
    return not (run.task.ignore_result if ignored is None else ignored)


def _is_needed(run: Run) -> bool:
    """Whether a copy may come, and anything waits for the value."""
    return bool(run.task.acks_late and is_awaited(run))


def _result(task: Any, record_key: str, encoded: bytes) -> bytes | None:
    """What the record keeps of a return value."""
    if not record_key:
        return None
    if len(encoded) > LARGEST_RESULT:
        _tell_unkept(task, record_key, f"it has {len(encoded)} bytes, and {LARGEST_RESULT} is the limit")
        return None
    return encoded


def _tell_unkept(task: Any, record_key: str, why: str) -> None:
    logger.error(
        "The record of %r says that its work is done, but not with what result: %s. Whoever asks for this work again "
        "is refused with AlreadyDone. Let %s return something small and plain, such as an id.",
        record_key,
        why,
        task.name,
    )


def _encode(value: Any, serializer: str) -> bytes:
    content_type, encoding, payload = serialization.dumps(value, serializer=serializer)
    data = payload if isinstance(payload, bytes) else payload.encode(encoding)
    return f"{content_type};{encoding}\n".encode() + data
