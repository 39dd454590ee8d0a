"""What all faults have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rig.strikes import Strike
from rig.world import World

T = TypeVar("T")


class Fault:
    """One strike of one fault on one world."""

    loses_data = False
    """Whether the store may have forgotten leases, counters or markers from now on."""

    step = 0.0
    """Seconds by which the lease server's clock was moved."""

    def __init__(self, world: World, strike_plan: Strike) -> None:
        self.world = world
        self.plan = strike_plan
        self.detail = strike_plan.how
        self.target: Any = None

    def strike(self) -> bool:
        """Begin; False where there was no victim."""
        raise NotImplementedError

    def heal(self) -> None:
        """End; safe to call for a fault that ended by itself."""

    def tick(self) -> None:
        """Called every few ms while the fault lasts."""

    def pick(self, victims: Sequence[T]) -> T | None:
        """The victim that the plan's roll points at."""
        return victims[int(self.plan.roll * len(victims))] if victims else None
