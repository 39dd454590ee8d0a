"""
What isn't promised, and can be shown: worlds that the rules as they are do reach.

A limit is told like a broken promise, by the fewest steps that lead to it; nobody is
alarmed by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.model.scope import Scope
from tests.chaos.model.scopes import THREE, TWO
from tests.chaos.model.world import HOLDING, OUT, World


@dataclass(frozen=True, slots=True)
class Limit:
    """A world in which it shows, how to tell it, and what it is."""

    scope: Scope
    shows: Callable[[World], bool]
    text: str


def is_orphaned(world: World) -> bool:
    """Whether the key is held for an owner that was told of a miss, and so won't release it."""
    lease = world.key.lease
    return lease is not None and world.owner(lease.owner).phase == OUT


def is_orphaned_after_release(world: World) -> bool:
    """Whether the key is held for an owner that has released it, and been told so."""
    lease = world.key.lease
    return lease is not None and world.owner(lease.owner).freed > 0


def is_overlapped(world: World) -> bool:
    """Whether a body goes on that has lost its lease, while another has the key."""
    bodies = [owner for owner in world.owners if owner.phase == HOLDING]
    return len(bodies) > 1 and any(owner.trust > 0 for owner in bodies)


LIMITS = {
    "late_after_miss": Limit(
        Scope("", TWO),
        is_orphaned,
        "A copy of a question arrives after its owner was told of a miss: the key is closed for a TTL.",
    ),
    "late_after_release": Limit(
        Scope("", THREE),
        is_orphaned_after_release,
        "A copy of a question arrives after another owner has released, too: the key is closed for a TTL.",
    ),
    "overlap": Limit(
        Scope("", TWO),
        is_overlapped,
        "A paused body goes on while another has the key; its guarded writes are refused.",
    ),
}
