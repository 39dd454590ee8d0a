"""Faults in time: what strikes when, what heals when, and a note of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import redis

from rig.faults import CLASSES, Fault
from rig.history import now
from rig.strikes import Strike
from rig.world import World


class Conductor:
    """Plays the strikes of a plan from the moment of its making; never waits for anything."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.began = now()
        self._coming: Iterator[Strike] = world.plan.strikes()
        self._next = next(self._coming, None)
        self._numbers = itertools.count(1)
        self._lasting: list[tuple[int, float, Fault]] = []

    def turn(self) -> None:
        """Heal what has lasted long enough, begin what is due."""
        passed = now() - self.began
        for entry in list(self._lasting):
            if entry[1] <= passed:
                self._heal(entry)
            else:
                entry[2].tick()
        while self._next is not None and self._next.at <= passed:
            self._strike(self._next)
            self._next = next(self._coming, None)

    def heal_all(self) -> bool:
        """End every fault that lasts; False if one can't be ended yet, and is to be tried again."""
        self._next = None
        for entry in list(self._lasting):
            self._heal(entry)
        return not self._lasting

    def _strike(self, plan: Strike) -> None:
        fault, moment = CLASSES[plan.fault](self.world, plan), now()
        if not _done(fault.strike):
            return
        number = next(self._numbers)
        self._note(number, "begin", fault, moment)
        self._lasting.append((number, now() - self.began + plan.lasts, fault))

    def _heal(self, entry: tuple[int, float, Fault]) -> None:
        number, _, fault = entry
        if _done(fault.heal):
            self._lasting.remove(entry)
            self._note(number, "end", fault, now())

    def _note(self, number: int, phase: str, fault: Fault, moment: float) -> None:
        self.world.history.note(
            "fault",
            at=moment,
            id=number,
            fault=fault.plan.fault,
            phase=phase,
            loses_data=fault.loses_data,
            target=fault.target,
            step=fault.step,
            detail=fault.detail,
        )


def _done(act: Callable[[], bool | None]) -> bool:
    """Whether *act* was done; a lease server that another fault has taken away is no reason to stop."""
    try:
        return act() is not False
    except (redis.RedisError, OSError):
        return False
