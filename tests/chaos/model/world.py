"""The whole state of the model: one key in a store, its owners, and a place that they write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.chaos.model.facts import Counter, Key

NAMES = "abc"

IDLE, ASKING, HOLDING = "idle", "asking", "holding"
ENDING, ENDED, STOPPED = "ending", "ended", "stopped"
GAVE_BACK, OUT = "gave back", "out"

CLEAN, LOST, RESTORED = 0, 1, 2
"""What the store has forgotten of an owner's grant: nothing; its lease; its lease and has it again, or its history."""

NO_BEAT = -1


class Owner(NamedTuple):
    """
    One execution: an owner asks once, so a restart is another owner.

    *trust* is in ticks, and runs from the first question on; *beat* is what the answer
    to its last renewal would make of it. *granted* is the token of a grant that is on
    its way to it.
    """

    role: int
    phase: str = IDLE
    token: int = 0
    trust: int = 0
    beat: int = NO_BEAT
    granted: int = 0
    memory: int = CLEAN
    fenced: bool = False
    freed: int = 0
    """2: the last one whose release was carried out, 1: an earlier one."""


class World(NamedTuple):
    """*mark* is the highest token that the guarded place has seen, *highest* the highest that was granted."""

    key: Key
    owners: tuple[Owner, ...]
    mark: int = 0
    highest: int = 0
    ended: tuple[str, ...] = ()
    """Deliveries that have ended under their lease, as long as nothing has been lost."""
    behind: bool = False
    """The server's clock has stepped back: it shows less than any token."""
    jumped: bool = False
    earlier: Key | None = None
    """What the store kept at an earlier moment, where that may come back; empty once it has."""

    def owner(self, name: str) -> Owner:
        """The owner of that name."""
        return self.owners[NAMES.index(name)]

    def with_owner(self, name: str, **changes: object) -> World:
        """The world with that owner changed."""
        place = NAMES.index(name)
        changed = self.owners[place]._replace(**changes)
        return self._replace(owners=(*self.owners[:place], changed, *self.owners[place + 1 :]))


def tokens_of(world: World) -> set[int]:
    """All tokens that somebody has, knows or is told; and 0, which stands for none."""
    found = {0, world.mark, world.highest}
    for key in filter(None, (world.key, world.earlier)):
        found.update((key.counter.token, key.counter.forced, key.lease.token if key.lease else 0))
    for owner in world.owners:
        found.add(owner.token)
        found.add(owner.granted)
    return found


def canonical(world: World) -> World:
    """The one world that stands for all that differ in the names of owners, or in how large tokens are."""
    tokens = sorted(tokens_of(world))
    if tokens[-1] >= len(tokens):
        world = _ranked(world, {token: place for place, token in enumerate(tokens)}.__getitem__)
    owners, keys = world.owners, [key for key in (world.key, world.earlier) if key]
    places = range(len(owners))
    order = sorted(
        places,
        key=[
            (owners[place], *(references(key, NAMES[place]) for key in keys)) for place in places
        ].__getitem__,
    )
    if order == list(places):
        return world
    names = {NAMES[old]: NAMES[new] for new, old in enumerate(order)} | {"": ""}
    return world._replace(
        key=renamed(world.key, names),
        owners=tuple(owners[place] for place in order),
        earlier=world.earlier and renamed(world.earlier, names),
    )


def _ranked(world: World, rank: Callable[[int], int]) -> World:
    owners = tuple(
        owner._replace(token=rank(owner.token), granted=rank(owner.granted))
        if owner.token or owner.granted
        else owner
        for owner in world.owners
    )
    return world._replace(
        key=ranked(world.key, rank),
        owners=owners,
        mark=rank(world.mark),
        highest=rank(world.highest),
        earlier=world.earlier and ranked(world.earlier, rank),
    )


def ranked(key: Key, rank: Callable[[int], int]) -> Key:
    """The key with its tokens by rank."""
    lease, counter = key.lease, key.counter
    if lease:
        lease = lease._replace(token=rank(lease.token))
    return Key(lease, Counter(rank(counter.token), counter.released, rank(counter.forced)), key.markers)


def renamed(key: Key, names: dict[str, str]) -> Key:
    """The key with its owners called otherwise."""
    lease, counter = key.lease, key.counter
    if lease:
        lease = lease._replace(owner=names[lease.owner])
    markers = tuple((delivery, marker._replace(by=names[marker.by])) for delivery, marker in key.markers)
    return Key(lease, Counter(counter.token, names[counter.released], counter.forced), markers)


def references(key: Key, name: str) -> tuple[bool, ...]:
    """In which places of the key that owner is named."""
    holds = key.lease is not None and key.lease.owner == name
    if not key.markers:
        return (holds, key.counter.released == name)
    return (holds, key.counter.released == name, *(marker.by == name for _, marker in key.markers))
