"""How much of the world one exploration takes in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.chaos.model.clients import Client
from tests.chaos.model.facts import Claim, Key
from tests.chaos.model.server import Server
from tests.chaos.model.world import NAMES, Owner, World

FAULTS = {
    "flush": "everything in the store is lost",
    "lose_lease": "the lease is evicted or deleted by hand",
    "lose_counter": "the counter is evicted",
    "lose_markers": "what is remembered of ended deliveries is evicted",
    "older": "the data of that moment come back, once",
    "force": "an operator releases the key by force",
    "die": "a process dies, and with it what it would have asked",
    "parent": "the parent of a dead process gives its lease back",
    "interrupt": "an execution is interrupted while it asks, and gives back what it may have been granted",
    "jump": "the server's clock jumps ahead, once, by the margin",
    "step_back": "the server's clock steps back behind every token, and catches up",
}


@dataclass(frozen=True, slots=True)
class Role:
    """What an owner runs: the delivery, the message it is a delivery of, what it decides for good on a miss."""

    delivery: str = ""
    message: str = ""
    if_held: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """
    Who takes part, what may go wrong, and by which rules; times in ticks.

    A clock that steps back and lost data are never in one scope: there the promise of
    growing tokens ends.
    """

    name: str
    roles: tuple[Role, ...] = (Role(), Role(), Role())
    faults: frozenset[str] = frozenset()
    ttl: int = 3
    margin: int = 1
    lost_delay: int = 0
    writes: bool = False
    server: Server = field(default_factory=Server)
    client: Client = field(default_factory=Client)

    def start(self) -> World:
        """Nobody has asked yet."""
        return World(Key(), tuple(Owner(place) for place in range(len(self.roles))))

    def claim(self, world: World, name: str) -> Claim:
        """What the owner of that name asks for."""
        role = self.roles[world.owners[NAMES.index(name)].role]
        return Claim(name, self.ttl, self.lost_delay, role.delivery, role.message, role.if_held)

    @property
    def trust(self) -> int:
        """How long a lease is trusted from the moment it is asked for."""
        return self.ttl - self.margin

    def under(self, *, server: Server | None = None, client: Client | None = None) -> Scope:
        """The same scope with other rules."""
        return replace(self, server=server or self.server, client=client or self.client)
