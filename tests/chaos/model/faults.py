"""Time, and what goes wrong with the store."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.model.facts import Counter, Key
from tests.chaos.model.scope import Scope
from tests.chaos.model.server import lose_counter, tick
from tests.chaos.model.steps import Move, Step, arrivals, knows_grant, now, owner_moves
from tests.chaos.model.world import CLEAN, IDLE, LOST, NAMES, NO_BEAT, RESTORED, Owner, World


def moves(scope: Scope, world: World) -> Iterator[Move]:
    """Every step from here, and where it leads."""
    asked = set()
    for name, owner in zip(NAMES, world.owners, strict=False):
        # Of those who have done nothing yet, one is as good as another.
        if owner.phase != IDLE or owner.role not in asked:
            yield from owner_moves(scope, world, name, owner)
            yield from arrivals(scope, world, name, owner)
        if owner.phase == IDLE:
            asked.add(owner.role)
    yield Step("tick"), _tick(world)
    yield from _losses(scope.faults, world)
    yield from _strikes(scope, world)


def _tick(world: World) -> World:
    return world._replace(key=tick(world.key), owners=tuple(_older(owner) for owner in world.owners))


def _older(owner: Owner) -> Owner:
    if not owner.trust and owner.beat == NO_BEAT:
        return owner
    trust, beat = max(owner.trust - 1, 0), owner.beat - 1
    # An answer that would add nothing is the same as none.
    return owner._replace(trust=trust, beat=beat if beat > trust else NO_BEAT)


def _losses(faults: frozenset[str], world: World) -> Iterator[Move]:
    key = world.key
    if "flush" in faults and key != Key():
        yield Step("flush"), _history_lost(_lease_lost(world))._replace(key=Key(), ended=())
    if "older" in faults and world.earlier is None and key.lease:
        yield Step("copy"), world._replace(earlier=key)
    if "older" in faults and world.earlier and world.earlier.lease and world.earlier != key:
        yield Step("older"), _older_back(world, world.earlier)
    if "lose_lease" in faults and key.lease:
        yield Step("lose_lease"), _lease_lost(world)._replace(key=key._replace(lease=None))
    if "lose_counter" in faults and key.counter != Counter():
        yield Step("lose_counter"), _history_lost(world)._replace(key=lose_counter(key))
    if "lose_markers" in faults and key.markers:
        yield Step("lose_markers"), world._replace(key=key._replace(markers=()), ended=())


def _strikes(scope: Scope, world: World) -> Iterator[Move]:
    if "force" in scope.faults:
        yield Step("force"), _forced(scope, world)
    if "jump" in scope.faults and not world.jumped:
        key = world.key
        for _ in range(scope.margin):
            key = tick(key)
        yield Step("jump"), world._replace(key=key, jumped=True)
    if "step_back" in scope.faults:
        yield Step("catch_up" if world.behind else "step_back"), world._replace(behind=not world.behind)


def _forced(scope: Scope, world: World) -> World:
    key, _ = scope.server.force_release(world.key, now(world))
    after = _lease_lost(world)
    owners = tuple(owner._replace(fenced=owner.fenced or knows_grant(owner)) for owner in after.owners)
    return after._replace(key=key, owners=owners)


def _older_back(world: World, earlier: Key) -> World:
    """Whoever has asked before has lost data, also one that isn't in the copy; and one that is and doesn't know it."""
    after = _history_lost(world)
    owners = tuple(owner if owner.phase == IDLE else owner._replace(memory=LOST) for owner in after.owners)
    ended = tuple(delivery for delivery, _ in earlier.markers)
    return after._replace(key=earlier, owners=owners, ended=ended, earlier=Key())


def _lease_lost(world: World) -> World:
    """The lease is gone without its holder: what it was promised as long as data are kept, it isn't any more."""
    owners = tuple(owner._replace(memory=LOST) if knows_grant(owner) else owner for owner in world.owners)
    return world._replace(owners=owners)


def _history_lost(world: World) -> World:
    """Nobody remembers who released, who is fenced off, and which token was the last."""
    return world._replace(owners=tuple(_forgotten(owner) for owner in world.owners))


def _forgotten(owner: Owner) -> Owner:
    memory = RESTORED if owner.memory == CLEAN and knows_grant(owner) else owner.memory
    return owner._replace(freed=0, fenced=False, memory=memory)
