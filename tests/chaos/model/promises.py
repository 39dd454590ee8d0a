"""
What is promised, asked of every step and of every state that is explored.

Where data were lost, a promise is not made to those who had a grant then: the owner's
`memory` says so. All others keep it, and whoever asks after the loss has it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from tests.chaos.model.facts import Answer
from tests.chaos.model.scope import Scope
from tests.chaos.model.steps import Step, is_new_grant
from tests.chaos.model.world import CLEAN, ENDED, ENDING, HOLDING, LOST, Owner, World

EXCLUSION = "G1: two owners trust their leases at once"
GIVEN_AWAY = "G1: a newer token is granted while a holder trusts its lease"
GROWTH = "G2: a grant has a token that isn't greater than every earlier one"
STALE = "G3: a write with an older token than one already seen was accepted"
LOCKED_OUT = "G3: the write of an owner that has the key, with the newest token, was refused"
MISLED = "an owner is told of a miss, and the key is its own: nobody will release it"
RETURNED = "an owner that was told of its release has the key again"
MISTAKEN = "an owner whose release was carried out takes its lease for lost"
UNDONE = "a lease that was released by force was put back"
DEPOSED = "a holder that trusts its lease is told that somebody has the key who was granted it before"
DENIED = "an owner that has the key and trusts its lease is told that it is gone"
TOO_LONG = "a lease lives longer than its TTL and its lost delay"
RUN_AGAIN = "G7: the delivery has ended, and a copy of it is granted the key"
LOST_WORK = "G5: a copy is told that its delivery has ended, and no body of it has, and nobody decided so"
ENDED_TWICE = "G7: two bodies of one delivery have ended under its lease"

PROMISES = frozenset(
    {
        EXCLUSION,
        GIVEN_AWAY,
        GROWTH,
        STALE,
        LOCKED_OUT,
        MISLED,
        RETURNED,
        MISTAKEN,
        UNDONE,
        DENIED,
        DEPOSED,
        TOO_LONG,
        RUN_AGAIN,
        LOST_WORK,
        ENDED_TWICE,
    }
)


def broken(scope: Scope, before: World, step: Step, after: World, sought: str = "") -> str:
    """The first promise that this step has broken (the one that is *sought*), or an empty text."""
    for promise in chain(_broken_by_step(scope, before, step, after), _broken_in_state(scope, after)):
        if sought in {"", promise}:
            return promise
    return ""


def _broken_by_step(scope: Scope, before: World, step: Step, after: World) -> Iterator[str]:
    if step.what == "write" and before.owner(step.who).token < before.mark:
        yield STALE
    elif step.what == "refused" and _is_rightful(before, before.owner(step.who)):
        yield LOCKED_OUT
    elif step.what == "acquire arrives":
        yield from _broken_by_acquire(scope, before, step.who, step.answer)
    elif step.what == "renewal arrives":
        yield from _broken_by_renewal(before.owner(step.who), step.answer)
    elif step.what == "release arrives":
        yield from _broken_by_release(scope, before, before.owner(step.who), step)


def _broken_by_acquire(scope: Scope, before: World, name: str, answer: Answer) -> Iterator[str]:
    owner, lease = before.owner(name), before.key.lease
    if is_new_grant(before, name, answer):
        if answer.token <= before.highest:
            yield GROWTH
        if owner.freed == 2:
            yield RETURNED
        if scope.roles[owner.role].delivery in before.ended:
            yield RUN_AGAIN
    if answer.word == "delivery_ended" and not _has_ended(scope, before, name):
        yield LOST_WORK
    if answer.word == "held" and lease and lease.owner == name and not lease.closed:
        yield MISLED


def _has_ended(scope: Scope, world: World, name: str) -> bool:
    delivery = scope.claim(world, name).delivery
    copies = [owner for owner in world.owners if scope.roles[owner.role].delivery == delivery]
    return delivery in world.ended or any(owner.phase in {ENDING, ENDED} for owner in copies)


def _broken_by_renewal(owner: Owner, answer: Answer) -> Iterator[str]:
    if answer.word == "gone":
        if owner.phase == HOLDING and owner.trust > 0 and owner.memory == CLEAN:
            yield DENIED
        if owner.phase == HOLDING and owner.trust > 0 and answer.holder and answer.holder.token < owner.token:
            yield DEPOSED
    elif owner.fenced:
        yield UNDONE
    elif owner.freed:
        yield RETURNED


def _broken_by_release(scope: Scope, before: World, owner: Owner, step: Step) -> Iterator[str]:
    again = owner.freed > 0 and step.answer.reason != "force_released"
    if step.read and again and scope.client.is_told_of_loss(step.answer, again=True):
        yield MISTAKEN
    first = owner.phase in {ENDING, ENDED} and not owner.freed and owner.memory == CLEAN
    counts = step.answer.word == "released" and not step.answer.ended
    if counts and first and scope.roles[owner.role].delivery in before.ended:
        yield ENDED_TWICE


def _is_rightful(world: World, owner: Owner) -> bool:
    return owner.trust > 0 and owner.memory == CLEAN and owner.token == world.highest


def _broken_in_state(scope: Scope, world: World) -> Iterator[str]:
    trusting = [owner for owner in world.owners if owner.phase == HOLDING and owner.trust > 0]
    if sum(owner.memory != LOST for owner in trusting) > 1:
        yield EXCLUSION
    if any(owner.memory == CLEAN and owner.token < world.highest for owner in trusting):
        yield GIVEN_AWAY
    lease = world.key.lease
    if lease and lease.left > scope.ttl + lease.lost_delay:
        yield TOO_LONG
