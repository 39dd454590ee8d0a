"""From the scripts' raw answers to the frozen values of `celery_fence.locking.store`."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from celery_fence.locking.store import (
    AcquireAnswer,
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
    ReleaseAnswer,
    Released,
    RenewAnswer,
)
from celery_fence.stores.redis.names import to_text

PREFIX = 2
"""A word and a reason stand before the holder."""

KINDS = {field.name: type(field.default) for field in fields(Facts)}
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def acquired_of(key: str, answer: list[Any]) -> AcquireAnswer:
    """What became of a wish for *key*."""
    word = answer[0]
    if word == b"granted":
        return Granted(token=int(answer[1]), since=int(answer[2]) / 1_000_000)
    if word == b"delivery_ended":
        return _delivery_ended(key, answer)
    holder = holder_of(key, answer)
    return Held(holder) if holder else Ended()


def released_of(key: str, answer: list[Any]) -> ReleaseAnswer:
    """What became of a release."""
    if answer[0] == b"released":
        return Released()
    _, reason, ended, *held = answer
    return Gone(reason.decode(), holder_of(key, held[0]) if held else None, ended=bool(ended))


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


def _whole(raw: bytes) -> int:
    """A number in a lease; 0 for one that was made by hand and isn't one."""
    try:
        return int(raw)
    except ValueError:
        return 0
