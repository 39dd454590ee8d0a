"""Every question to the lease store and every answer, noted by the process that asks: the heartbeat's too."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from celery_fence import signals
from celery_fence.locking.store import (
    Claim,
    DeliveryEnded,
    Ended,
    ForceReleased,
    Gone,
    Granted,
    Held,
    Kept,
    Note,
    Released,
    Renewal,
)
from celery_fence.stores.redis.scripts import load_scripts
from celery_fence.stores.redis.store import RedisStore
from rig.history import History

Item = dict[str, Any]

_numbers = itertools.count()


def record_store(history: History) -> None:
    """Wrap the Redis store of this process and of its forks; call it after a negative control has had its way."""
    scripts = load_scripts()
    history.note("scripts", digests={name: getattr(scripts, name).digest for name in type(scripts).__slots__})
    for question in ("acquire", "renew", "release", "note", "force_release"):
        setattr(RedisStore, question, recorded(question, getattr(RedisStore, question), history))
    signals.lease_lost.connect(functools.partial(_lost, history), weak=False)


def recorded(question: str, ask: Callable[..., Any], history: History) -> Callable[..., Any]:
    """The method *ask* of the Redis store, with a note of each question and of each answer."""
    items, answers = ITEMS[question], ANSWERS[question]

    @functools.wraps(ask)
    def noted(self: RedisStore, *args: Any, **kwargs: Any) -> Any:
        call = f"{os.getpid()}-{next(_numbers)}"
        history.note("ask", call=call, question=question, items=items(*args, **kwargs))
        try:
            answer = ask(self, *args, **kwargs)
        except BaseException as error:
            history.note("answer", call=call, error=f"{type(error).__name__}: {error}"[:200])
            raise
        history.note("answer", call=call, items=answers(answer, *args))
        return answer

    return noted


def _lost(history: History, key: str = "", lease: Any = None, reason: str = "", **_: Any) -> None:
    history.note("lost", key=key, owner=lease.owner, token=lease.token, reason=reason)


# --- what is asked ---------------------------------------------------------------------------


def _claim(claim: Claim, token: int = 0, how: str = "") -> Item:
    return {
        "key": claim.key,
        "owner": claim.owner,
        "token": token,
        "ttl": claim.ttl,
        "delivery": claim.delivery,
        "message": claim.message,
        "if_held": claim.if_held,
        "how": how,
    }


def _of_acquire(claim: Claim) -> list[Item]:
    return [_claim(claim)]


def _of_renew(renewals: Sequence[Renewal]) -> list[Item]:
    return [_claim(renewal.claim, renewal.token) for renewal in renewals]


def _of_release(claim: Claim, token: int, ending: Any = None) -> list[Item]:
    return [_claim(claim, token, "" if ending is None else ending.how)]


def _of_note(notes: Sequence[Note]) -> list[Item]:
    return [{"key": note.key, "delivery": note.delivery, "how": note.how} for note in notes]


def _of_force_release(key: str, owner: str | None = None) -> list[Item]:
    return [{"key": key, "owner": owner}]


ITEMS: dict[str, Callable[..., list[Item]]] = {
    "acquire": _of_acquire,
    "renew": _of_renew,
    "release": _of_release,
    "note": _of_note,
    "force_release": _of_force_release,
}


# --- what is answered ------------------------------------------------------------------------

NAMES = {
    Granted: "granted",
    Held: "held",
    Ended: "ended",
    DeliveryEnded: "delivery_ended",
    Kept: "kept",
    Gone: "gone",
    Released: "released",
    ForceReleased: "released",
}


def _answer(answer: Any) -> Item:
    found: Item = {"answer": NAMES[type(answer)]}
    match answer:
        case Granted(token=token):
            found |= {"token": token}
        case Held(holder=holder):
            found |= _holder(holder)
        case DeliveryEnded(ending=ending, noted=noted, age=age):
            found |= {"reason": ending.how, "noted": noted, "age": age}
        case Kept(reinstated=True):
            found |= {"answer": "reinstated"}
        case Gone(reason=reason, holder=holder, ended=ended):
            found |= {"reason": reason, "ended": ended, **_holder(holder)}
    return found


def _holder(holder: Any) -> Item:
    if holder is None:
        return {"holder": None}
    return {"holder": holder.owner, "token": holder.token, "left": holder.ttl_left, "closed": holder.closed}


def _one(answer: Any, *_: Any) -> list[Item]:
    return [_answer(answer)]


def _each(answers: Sequence[Any], *_: Any) -> list[Item]:
    return [_answer(answer) for answer in answers]


def _noted(_: None, notes: Sequence[Note]) -> list[Item]:
    return [{"answer": "noted"} for _ in notes]


ANSWERS: dict[str, Callable[..., list[Item]]] = {
    "acquire": _one,
    "renew": _each,
    "release": _one,
    "note": _noted,
    "force_release": _one,
}
