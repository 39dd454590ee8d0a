"""Every question that the explored worlds put to the store, once: what is kept, what is asked, what must follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.chaos.model.explore import Exploration
from tests.chaos.model.facts import Answer, Claim, Key
from tests.chaos.model.scope import Scope
from tests.chaos.model.server import Server
from tests.chaos.model.world import ENDED, ENDING, GAVE_BACK, IDLE, NAMES, STOPPED, World, ranked, renamed


class Question(NamedTuple):
    """*kind* is one of acquire, renew, release, note, force; *behind*: the clock shows less than any token."""

    kind: str
    claim: Claim
    token: int = 0
    how: str = ""
    behind: bool = False


class Vector(NamedTuple):
    """A transition of the store alone; *now* is the token that its clock stands for."""

    before: Key
    question: Question
    now: int
    after: Key
    answer: Answer


def vectors(explorations: Iterable[Exploration]) -> list[Vector]:
    """The vectors of these worlds, in an order that is always the same."""
    asked = set()
    for exploration in explorations:
        raw = {pair for world in exploration.parents for pair in questions(exploration.scope, world)}
        asked.update(_normal(key, question) for key, question in raw)
    return [_vector(key, question) for key, question in sorted(asked, key=repr)]


def questions(scope: Scope, world: World) -> Iterator[tuple[Key, Question]]:
    """What may arrive at the store next in *world*; and the questions of people, which may come at any time."""
    for name, owner in zip(NAMES, world.owners, strict=False):
        claim = scope.claim(world, name)
        if owner.phase != IDLE:
            yield world.key, Question("acquire", claim, behind=world.behind)
        if owner.token:
            yield from ((world.key, each) for each in _renewals(world.key, claim, owner.token))
        if owner.phase in {ENDING, ENDED, STOPPED, GAVE_BACK}:
            how = "returned" if owner.phase in {ENDING, ENDED} else ""
            token = 0 if owner.phase == GAVE_BACK else owner.token
            yield world.key, Question("release", claim, token, how, behind=world.behind)
        if owner.phase == ENDED and claim.delivery:
            yield world.key, Question("note", claim, how="returned")
    yield world.key, Question("force", Claim("", scope.ttl), behind=world.behind)


def _renewals(key: Key, claim: Claim, token: int) -> Iterator[Question]:
    """The holder's also with what the lease wasn't granted with, which a script may take another way for."""
    yield Question("renew", claim, token)
    if key.lease and key.lease.owner == claim.owner:
        yield Question("renew", claim._replace(ttl=claim.ttl + 1), token)
        yield Question("renew", claim._replace(lost_delay=claim.lost_delay + 1), token)


def answered(server: Server, key: Key, question: Question, now: int) -> tuple[Key, Answer | None]:
    """What *server* makes of a question, with the clock at *now*."""
    claim = question.claim
    match question.kind:
        case "acquire":
            return server.acquire(key, claim, now)
        case "renew":
            return server.renew(key, claim, question.token)
        case "release":
            return server.release(key, claim, question.token, now, question.how)
        case "note":
            return server.note(key, claim.delivery, question.how), None
        case _:
            return server.force_release(key, now)


def _vector(key: Key, question: Question) -> Vector:
    now = 0 if question.behind else 1 + max(_tokens(key, question))
    return Vector(key, question, now, *answered(Server(), key, question, now))


def _tokens(key: Key, question: Question) -> set[int]:
    lease = {key.lease.token} if key.lease else set()
    return {0, question.token, key.counter.token, key.counter.forced, *lease}


def _normal(key: Key, question: Question) -> tuple[Key, Question]:
    """The same for all that differ in the names of owners, or in how large tokens are."""
    rank = {token: place for place, token in enumerate(sorted(_tokens(key, question)))}.__getitem__
    found = [question.claim.owner, key.lease.owner if key.lease else "", key.counter.released]
    found += [marker.by for _, marker in key.markers]
    names = dict(zip(dict.fromkeys(name for name in found if name), NAMES, strict=False)) | {"": ""}
    claim = question.claim._replace(owner=names[question.claim.owner])
    # Where no token is remembered there is none that a clock could have stepped behind.
    behind = question.behind and key.counter.token > 0
    asked = question._replace(claim=claim, token=rank(question.token), behind=behind)
    return renamed(ranked(key, rank), names), asked
