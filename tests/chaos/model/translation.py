"""Between the words of the model and those of `celery_fence.locking.store`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from celery_fence.locking import store as words
from tests.chaos.model.facts import Answer, Claim, Holder, Key
from tests.chaos.model.vectors import Question, Vector

TICK = 600.0
"""Seconds; so long that nothing moves while a vector is run."""

HOUR_US = 3600 * 1_000_000

STRANGE = -1
"""What a token of a store is read as that the model knows nothing of."""


WORDS = {
    words.Granted: "granted",
    words.Held: "held",
    words.Ended: "ended",
    words.DeliveryEnded: "delivery_ended",
    words.Kept: "kept",
    words.Gone: "gone",
    words.Released: "released",
    words.ForceReleased: "force_released",
}


class Scale:
    """
    How the tokens of one vector are written in a store, whose clock shows *now_us*, and read back.

    Tokens of the model are ranks: in a store they lie an hour back, or an hour ahead
    where its clock has stepped back behind them. What the store issues by its clock is
    recognised by the moment.
    """

    def __init__(self, vector: Vector, now_us: int) -> None:
        self._zero = now_us + (HOUR_US if vector.question.behind else -HOUR_US)
        self._vector = vector
        self.now_us = now_us

    def real(self, token: int) -> int:
        """The store's token for one of the model."""
        return self._zero + token if token else 0

    def rank(self, token: int, until_us: int) -> int:
        """The model's token for one of the store, whose clock shows *until_us* by now."""
        if not token:
            return 0
        if self.now_us <= token <= until_us:
            return self._vector.now
        known = token - self._zero
        return known if 0 < known < 100 else STRANGE


class Seen(NamedTuple):
    """What a store answered and kept; *listed*: whether its list of leases has the key."""

    answer: Answer | None
    kept: Key
    listed: bool


def answer_of(answer: Any) -> Answer:
    """An answer of a store as one of the model, its moment in us; ages, facts and times left are nobody's rule."""
    fact = partial(getattr, answer)
    ending = fact("ending", None)
    return Answer(
        word="reinstated" if fact("reinstated", False) else WORDS[type(answer)],
        reason=fact("reason", ""),
        token=fact("token", 0),
        since=round(1_000_000 * fact("since", 0)),
        holder=holder_of(fact("holder", None)),
        how=ending.how if ending else "",
        value=ending.value if ending else None,
        noted=fact("noted", False),
        ended=fact("ended", False),
    )


def holder_of(holder: words.Holder | None) -> Holder | None:
    """Who has the key, in the model's words."""
    return Holder(holder.owner, holder.token, holder.closed) if holder else None


def ask(store: words.Store, name: str, question: Question, token: int) -> Answer | None:
    """Put *question* to *store*, about the key *name*, with *token* as the store writes it."""
    claim = claim_of(name, question.claim)
    match question.kind:
        case "acquire":
            return answer_of(store.acquire(claim))
        case "renew":
            return answer_of(store.renew([words.Renewal(claim, token, 1.0)])[0])
        case "release":
            return answer_of(
                store.release(claim, token, words.Ending(question.how) if question.how else None)
            )
        case "note":
            store.note([words.Note(name, claim.delivery, question.how, 3600.0)])
            return None
        case _:
            return answer_of(store.force_release(name))


def claim_of(name: str, claim: Claim) -> words.Claim:
    """The store's claim for one of the model."""
    return words.Claim(
        key=name,
        owner=claim.owner,
        ttl=claim.ttl * TICK,
        delivery=claim.delivery,
        message=claim.message,
        if_held=claim.if_held,
        lost_delay=claim.lost_delay * TICK,
    )


def in_ranks(answer: Answer | None, rank: Callable[[int], int]) -> Answer | None:
    """*answer* with the model's tokens, and without its moment."""
    if answer is None:
        return None
    holder = answer.holder and answer.holder._replace(token=rank(answer.holder.token))
    return answer._replace(token=rank(answer.token), since=0, holder=holder)
