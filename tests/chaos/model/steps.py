"""
Every step that the world can take: what an owner does, what arrives at the store, what goes wrong.

What needs no step of its own: a pause, for whoever doesn't move while others do is
paused; a lost message, for one that never arrives is lost. What was asked once may
arrive at any later time and any number of times, as what a client repeats and what a
network delays; a holder has sent a renewal at once. The answer to a renewal arrives at
once or never: read later, it would be worth no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.model.facts import Answer, Claim, Holder, Key, Lease
from tests.chaos.model.scope import Scope
from tests.chaos.model.world import (
    ASKING,
    CLEAN,
    ENDED,
    ENDING,
    GAVE_BACK,
    HOLDING,
    IDLE,
    LOST,
    NO_BEAT,
    OUT,
    RESTORED,
    STOPPED,
    Owner,
    World,
    tokens_of,
)


class Step(NamedTuple):
    """*what* happened, to or by *who*; *answer* is the store's, and *read* tells whether the owner has got it."""

    what: str
    who: str = ""
    answer: Answer | None = None
    read: bool = False


Move = tuple[Step, World]

NOBODY = Holder("", 0)


def now(world: World) -> int:
    """The server's clock as a token: beyond all that were issued, unless it has stepped back."""
    return 0 if world.behind else max(tokens_of(world)) + 1


def is_new_grant(world: World, name: str, answer: Answer) -> bool:
    """Whether *answer* grants what its owner hasn't got in this world: no repetition."""
    lease = world.key.lease
    return answer.word == "granted" and (lease is None or (lease.owner, lease.token) != (name, answer.token))


def owner_moves(scope: Scope, world: World, name: str, owner: Owner) -> Iterator[Move]:
    """What the owner of that name may do next."""
    if owner.phase == IDLE:
        yield Step("ask", name), world.with_owner(name, phase=ASKING, trust=scope.trust)
    elif owner.phase == ASKING:
        yield from _asking(scope, world, name, owner)
    elif owner.phase == HOLDING:
        yield from _holding(scope, world, name, owner)
    if "die" in scope.faults and owner.phase in {ASKING, HOLDING, ENDING}:
        yield Step("die", name), _done(world, name, OUT)
    if "parent" in scope.faults and owner.phase == OUT:
        yield Step("parent", name), _done(world, name, GAVE_BACK)


def arrivals(scope: Scope, world: World, name: str, owner: Owner) -> Iterator[Move]:
    """What the owner of that name has asked, and may arrive at the store next."""
    if owner.phase == IDLE:
        return
    yield from _acquire(scope, world, name, owner)
    if owner.token:
        yield from _renew(scope, world, name, owner)
    if owner.phase in {ENDING, ENDED, STOPPED, GAVE_BACK}:
        yield from _release(scope, world, name, owner)
    delivery = scope.roles[owner.role].delivery
    if owner.phase == ENDED and delivery:
        key = scope.server.note(world.key, delivery, "returned")
        yield Step("note arrives", name), world._replace(key=key)


# --- what an owner does -------------------------------------------------------------------


def _asking(scope: Scope, world: World, name: str, owner: Owner) -> Iterator[Move]:
    if "interrupt" in scope.faults:
        yield Step("interrupt", name), _done(world, name, GAVE_BACK)
    if not owner.granted:
        return
    trust = scope.client.trust_of_grant(owner, scope.trust)
    if trust > 0:
        after = world.with_owner(name, phase=HOLDING, token=owner.granted, trust=trust, granted=0)
        yield Step("enter", name), after
    else:
        yield Step("too late", name), _done(world, name, GAVE_BACK)


def _holding(scope: Scope, world: World, name: str, owner: Owner) -> Iterator[Move]:
    if 0 < owner.trust < scope.trust:
        trust = scope.client.trust_unanswered(owner, scope.trust)
        yield Step("renew", name), world.with_owner(name, beat=scope.trust, trust=trust)
    if scope.writes and scope.client.accepts(owner.token, world.mark):
        yield Step("write", name), world._replace(mark=owner.token)
    elif scope.writes:
        yield Step("refused", name), world
    if scope.roles[owner.role].delivery:
        yield Step("end", name), _done(world, name, ENDING)
        yield Step("stop", name), _done(world, name, STOPPED)
    else:
        yield Step("end", name), _done(world, name, ENDED)


def _done(world: World, name: str, phase: str) -> World:
    return world.with_owner(name, phase=phase, trust=0, beat=NO_BEAT, granted=0)


# --- what arrives at the store -------------------------------------------------------------


def _acquire(scope: Scope, world: World, name: str, owner: Owner) -> Iterator[Move]:
    claim = scope.claim(world, name)
    key, answer = scope.server.acquire(world.key, claim, now(world))
    after = world if key is world.key else world._replace(key=key)
    if is_new_grant(world, name, answer):
        after = _granted(after, name, owner, answer)
    if answer.word == "held" and _decides(claim, world.key.lease):
        after = _with_ended(after._replace(key=_plain(key)), claim.delivery)
    reads = owner.phase == ASKING
    if not reads or answer.word != "granted" or owner.granted:
        yield Step("acquire arrives", name, answer), after
    if reads:
        granted = answer.word == "granted"
        heard = after.with_owner(name, granted=answer.token) if granted else _done(after, name, OUT)
        yield Step("acquire arrives", name, answer, read=True), heard


def _granted(world: World, name: str, owner: Owner, answer: Answer) -> World:
    """What a new grant means for the promises: they hold again, for who has no other one."""
    memory = CLEAN if not knows_grant(owner) else RESTORED if owner.memory != CLEAN else CLEAN
    world = world.with_owner(name, memory=memory, fenced=owner.fenced and bool(owner.token))
    return world._replace(highest=max(world.highest, answer.token))


def _renew(scope: Scope, world: World, name: str, owner: Owner) -> Iterator[Move]:
    key, answer = scope.server.renew(world.key, scope.claim(world, name), owner.token)
    after = world if key is world.key else world._replace(key=key)
    if answer.word != "gone":
        after = _ousted(world, after, name)
    if answer.word != "gone" and owner.memory == LOST:
        after = after.with_owner(name, memory=RESTORED)
    yield Step("renewal arrives", name, answer), after
    if owner.beat != NO_BEAT:
        trust = 0 if answer.word == "gone" else scope.client.trust_of_renewal(owner, scope.trust)
        read = after.with_owner(name, trust=trust, beat=NO_BEAT)
        yield Step("renewal arrives", name, answer, read=True), read


def _release(scope: Scope, world: World, name: str, owner: Owner) -> Iterator[Move]:
    how = "returned" if owner.phase in {ENDING, ENDED} else ""
    token = 0 if owner.phase == GAVE_BACK else owner.token
    claim = scope.claim(world, name)
    key, answer = scope.server.release(world.key, claim, token, now(world), how)
    after = world._replace(key=key)
    # Whatever it is told: who has given back, and left the key free, isn't to have it again.
    gave_back = owner.phase == GAVE_BACK and key.lease is None
    if answer.word == "released" and key != world.key:
        after = _ousted(world, after, name)
    if answer.word == "released" or gave_back:
        others = tuple(each._replace(freed=min(each.freed, 1)) for each in world.owners)
        after = after._replace(owners=others).with_owner(name, freed=2)
        if how and claim.delivery and not owner.freed:
            after = _with_ended(after, claim.delivery)
    step = Step("release arrives", name, answer)
    yield step, after
    if owner.phase == ENDING:
        yield step._replace(read=True), after.with_owner(name, phase=ENDED)


def _ousted(before: World, after: World, name: str) -> World:
    """The lease of another, which came back from a loss and had to give way to a newer one, is lost again."""
    lease = before.key.lease
    if lease is None or lease.owner in {name, ""} or before.owner(lease.owner).memory != RESTORED:
        return after
    return after if after.key.lease == lease else after.with_owner(lease.owner, memory=LOST)


def _decides(claim: Claim, lease: Lease | None) -> bool:
    """Whether the asker decides for good now; it isn't the first time where nobody holds the key any more."""
    return bool(claim.if_held) and lease is not None and lease.message != claim.message


def _plain(key: Key) -> Key:
    """Who held the key when a decision was made is told again, and nobody acts upon it."""
    markers = tuple((name, marker._replace(told=marker.told and NOBODY)) for name, marker in key.markers)
    return key._replace(markers=markers)


def _with_ended(world: World, delivery: str) -> World:
    return world._replace(ended=tuple(sorted({*world.ended, delivery})))


def knows_grant(owner: Owner) -> bool:
    """Whether the owner has been told of a grant, or is about to be."""
    return bool(owner.token or owner.granted)
