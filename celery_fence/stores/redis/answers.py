"""
From the scripts' raw answers to the frozen values of `celery_fence.locking.store`.

Strict: an answer that no script of ours gives, from a broken proxy or a server of another kind, is an error in
unpacking it, or the `ValueError` of a word that isn't among those of its question; the client makes
`StoreUnavailable` of either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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
    ForceReleaseAnswer,
    ForceReleased,
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

ACQUIRED = (b"granted", b"held", b"delivery_ended", b"ended", b"already_done", b"claimed_elsewhere")
RELEASED = (b"released", b"gone")
RENEWED = (b"kept", b"reinstated", b"gone")
RAISED = (b"raised", b"gone")
HOLDER = (b"held", b"free")
FORCED = (b"force_released", b"held")
CLAIMED = (b"claimed", b"already_done", b"claimed_elsewhere")
RECORD = (b"record", b"none")
RECORD_ENDED = (b"ended",)
"""The first words of the answers to each question."""

RECORD_WORDS = (b"already_done", b"claimed_elsewhere")

POLICY = re.compile("[a-z0-9-]*")

KINDS = {field.name: type(field.default) for field in fields(Facts)}
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def acquired_of(claim: Claim, answer: list[Any]) -> AcquireAnswer:
    """What became of a wish."""
    key, word = claim.key, word_of(answer, ACQUIRED)
    if word == b"granted":
        return Granted(token=int(answer[1]), since=int(answer[2]) / 1_000_000)
    if word == b"delivery_ended":
        return _delivery_ended(key, answer)
    if word in RECORD_WORDS:
        return _refused(claim.record, answer)
    holder = holder_of(key, answer)
    return Held(holder) if holder else Ended()


def released_of(key: str, answer: list[Any], asked: int) -> ReleaseAnswer:
    """What became of a release that was *asked* for so many times."""
    if word_of(answer, RELEASED) == b"released":
        _, ended = answer
        return Released(ended=bool(ended))
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
    word = word_of(answer, RENEWED)
    if word == b"gone":
        return Gone(answer[1].decode(), holder_of(key, answer))
    return Kept(reinstated=word == b"reinstated")


def raised_of(key: str, answer: list[Any]) -> RaiseAnswer:
    """What became of a wish to raise the counter of *key*."""
    if word_of(answer, RAISED) == b"raised":
        return Raised()
    return Gone(answer[1].decode(), holder_of(key, answer))


def claimed_of(key: str, answer: list[Any]) -> Done | ClaimedElsewhere | None:
    """What became of a claim of the idempotency *key*; None: it was made."""
    return None if word_of(answer, CLAIMED) == b"claimed" else _refused(key, answer)


def record_of(key: str, answer: list[Any]) -> Record | None:
    """What is known of the idempotency *key*."""
    return None if word_of(answer, RECORD) == b"none" else _known(key, answer)


def holders_of(keys: Sequence[str], answers: list[Any]) -> list[Holder | None]:
    """Who has each of *keys*."""
    for answer in answers:
        word_of(answer, HOLDER)
    return [holder_of(key, answer) for key, answer in zip(keys, answers, strict=True)]


def forced_of(key: str, answer: list[Any]) -> ForceReleaseAnswer:
    """What became of a wish to force *key* open."""
    word, holder = word_of(answer, FORCED), holder_of(key, answer)
    return Held(holder) if holder and word == b"held" else ForceReleased(holder)


def renewals_of(keys: Sequence[str], answers: list[Any]) -> list[RenewAnswer]:
    """What became of the leases on *keys*."""
    return [renewal_of(key, answer) for key, answer in zip(keys, answers, strict=True)]


def records_of(keys: Sequence[str], answers: list[Any]) -> list[Record | None]:
    """What is known of the idempotency *keys*."""
    return [record_of(key, answer) for key, answer in zip(keys, answers, strict=True)]


def keys_of(answer: list[Any]) -> list[str]:
    """The keys in an index."""
    return [to_text(key) for key in _list(answer)]


def policy_of(answer: bytes) -> str:
    """The server's maxmemory-policy; empty where it doesn't say."""
    policy = answer.decode()
    if not POLICY.fullmatch(policy):
        raise ValueError(f"the policy {policy!r}")
    return policy


def ended_of(answer: list[Any]) -> None:
    """That the end of a record was heard."""
    word_of(answer, RECORD_ENDED)


def noted_of(count: int, answer: Any) -> None:
    """That *count* notes were made."""
    if answer != count:
        raise ValueError(f"noted {answer!r} of {count}")


def history_of(answer: list[Any]) -> History:
    """What a counter remembers. Its tokens are times; a force release issues one as well, which is no grant."""
    token, released_us, forced = (_whole(raw or b"0") for raw in _list(answer))
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
    except (ValueError, RecursionError):  # nested too deeply, it is no fact of ours either
        return Facts()
    if not isinstance(found, dict):
        return Facts()
    return Facts(**{name: found[name] for name, kind in KINDS.items() if isinstance(found.get(name), kind)})


def word_of(answer: list[Any], known: Sequence[bytes]) -> bytes:
    """The first word of *answer*, one of *known*."""
    word: bytes = answer[0]
    if word not in known:
        raise ValueError(f"the word {word!r}")
    return word


def _list(answer: Any) -> list[Any]:
    # Bytes have items, too.
    if not isinstance(answer, list):
        raise TypeError(f"{type(answer).__name__} for a list")
    return answer


def _refused(key: str, answer: list[Any]) -> Done | ClaimedElsewhere:
    record = _known(key, answer)
    return Done(record) if answer[0] == b"already_done" else ClaimedElsewhere(record)


def _delivery_ended(key: str, answer: list[Any]) -> DeliveryEnded:
    _, how, noted, age_us, value, held = answer
    return DeliveryEnded(
        ending=Ending(to_text(how), value),
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
