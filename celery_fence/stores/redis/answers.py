"""From the scripts' raw answers to the frozen values of `celery_fence.locking.store`."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from celery_fence.locking.records import ClaimedElsewhere, Done, Record
from celery_fence.locking.store import (
    AcquireAnswer,
    Claim,
    DeliveryEnded,
    Ended,
    Ending,
    Facts,
    Gone,
    Granted,
    Held,
    History,
    Holder,
    Kept,
    RaiseAnswer,
    Raised,
    ReleaseAnswer,
    Released,
    RenewAnswer,
)
from celery_fence.stores.redis.names import to_text

PREFIX = 2
"""A word and a reason stand before the holder."""

RECORD_WORDS = (b"already_done", b"claimed_elsewhere")

KINDS = {field.name: type(field.default) for field in fields(Facts)}
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def acquired_of(claim: Claim, answer: list[Any]) -> AcquireAnswer:
    """What became of a wish."""
    key, word = claim.key, answer[0]
    if word == b"granted":
        return Granted(token=int(answer[1]), since=int(answer[2]) / 1_000_000)
    if word == b"delivery_ended":
        return _delivery_ended(key, answer)
    refused = claimed_of(claim.record, answer)
    if refused is not None:
        return refused
    holder = holder_of(key, answer)
    return Held(holder) if holder else Ended()


def released_of(key: str, answer: list[Any], asked: int) -> ReleaseAnswer:
    """What became of a release that was *asked* for so many times."""
    if answer[0] == b"released":
        return Released()
    _, reason, ended, *held = answer
    holder = holder_of(key, held[0]) if held else None
    return Gone(reason.decode(), holder, ended=bool(ended), repeated=asked > 1)


def holder_of(key: str, answer: list[Any]) -> Holder | None:
    """The holder in *answer* (``word, reason, owner, token, ...``), or None where it has none."""
    if len(answer) <= PREFIX:
        return None
    owner, token, left_ms, since_us, beat_age_us, facts, closed = answer[PREFIX:]
    return Holder(
        key=key,
        owner=to_text(owner),
        token=_whole(token),
        ttl_left=None if left_ms < 0 else left_ms / 1000,
        since=_whole(since_us) / 1_000_000,
        beat_age=_whole(beat_age_us) / 1_000_000,
        facts=facts_of(facts),
        closed=bool(closed),
    )


def renewal_of(key: str, answer: list[Any]) -> RenewAnswer:
    """What became of one lease of a batch."""
    word = answer[0]
    if word == b"gone":
        return Gone(answer[1].decode(), holder_of(key, answer))
    return Kept(reinstated=word == b"reinstated")


def raised_of(key: str, answer: list[Any]) -> RaiseAnswer:
    """What became of a wish to raise the counter of *key*."""
    return Raised() if answer[0] == b"raised" else Gone(answer[1].decode(), holder_of(key, answer))


def claimed_of(key: str, answer: list[Any]) -> Done | ClaimedElsewhere | None:
    """What became of a claim of the idempotency *key*; None: it was made."""
    if answer[0] not in RECORD_WORDS:
        return None
    record = _known(key, answer)
    return Done(record) if answer[0] == b"already_done" else ClaimedElsewhere(record)


def record_of(key: str, answer: list[Any]) -> Record | None:
    """What is known of the idempotency *key*."""
    return None if answer[0] == b"none" else _known(key, answer)


def history_of(answer: list[Any]) -> History:
    """What a counter remembers. Its tokens are times; a force release issues one as well, which is no grant."""
    token, released_us, forced = (_whole(raw or b"0") for raw in answer)
    return History(
        token=token,
        granted=token / 1_000_000 if token > forced else None,
        released=released_us / 1_000_000 if released_us else None,
        force_released=forced / 1_000_000 if forced else None,
    )


def facts_text(facts: Facts) -> str:
    """*facts* as they are kept in a lease."""
    return ENCODE({name: getattr(facts, name) for name in KINDS})


def facts_of(raw: bytes) -> Facts:
    """The facts in a lease; what is missing, unknown or junk is left out."""
    try:
        found = json.loads(raw)
    except ValueError:
        return Facts()
    if not isinstance(found, dict):
        return Facts()
    return Facts(**{name: found[name] for name, kind in KINDS.items() if isinstance(found.get(name), kind)})


def _delivery_ended(key: str, answer: list[Any]) -> DeliveryEnded:
    _, how, noted, age_us, value, held = answer
    return DeliveryEnded(
        ending=Ending(how.decode(), value),
        noted=noted is not None,
        age=int(age_us) / 1_000_000,
        holder=holder_of(key, held or []),
    )


def _known(key: str, answer: list[Any]) -> Record:
    """The record in *answer* (``word, lock key, owner, ...``)."""
    lock_key, owner, token, claimed_us, done_us, facts, left_ms, size, value = answer[1:]
    return Record(
        key=key,
        lock_key=to_text(lock_key),
        owner=to_text(owner),
        token=_whole(token),
        facts=facts_of(facts),
        claimed=_whole(claimed_us) / 1_000_000,
        done=None if done_us is None else _whole(done_us) / 1_000_000,
        value=value,
        size=size,
        left=max(left_ms, 0) / 1000,
    )


def _whole(raw: bytes) -> int:
    """A number in a lease; 0 for one that was made by hand and isn't one."""
    try:
        return int(raw)
    except ValueError:
        return 0
