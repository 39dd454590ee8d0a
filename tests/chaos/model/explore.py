"""Breadth first through every state that can be reached, so that what is found first is told in the fewest steps."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial

from tests.chaos.model.faults import moves
from tests.chaos.model.limits import Limit
from tests.chaos.model.promises import broken
from tests.chaos.model.scope import Scope
from tests.chaos.model.steps import Step
from tests.chaos.model.world import World, canonical

Verdict = Callable[[Scope, World, Step, World], str]
"""What is to be said about a step between two worlds; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The fewest steps from the start to what was looked for; each with the world after it."""

    text: str
    steps: tuple[tuple[Step, World], ...]


@dataclass(slots=True)
class Exploration:
    """What was found: *parents* has every state, *taken* counts the steps between them by their kind."""

    scope: Scope
    verdict: Verdict
    parents: dict[World, World | None] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    finding: Finding | None = None

    @property
    def states(self) -> int:
        """How many different states were reached."""
        return len(self.parents)

    @property
    def transitions(self) -> int:
        """How many steps lead from a state to one."""
        return self.taken.total()


@cache
def explored(scope: Scope) -> Exploration:
    """Every state of *scope*; explored once for all who ask."""
    return explore(scope)


def explore(scope: Scope, *, sought: str = "") -> Exploration:
    """Every state of *scope*, up to the first broken promise, or up to the one that is *sought*."""
    return _explore(Exploration(scope, partial(broken, sought=sought)))


def find(limit: Limit) -> Exploration:
    """Every state up to the first in which *limit* shows."""
    return _explore(Exploration(limit.scope, lambda *step: limit.text if limit.shows(step[-1]) else ""))


def _explore(found: Exploration) -> Exploration:
    began = time.perf_counter()
    start = canonical(found.scope.start())
    found.parents[start] = None
    waiting = deque([start])
    while waiting and found.finding is None:
        waiting.extend(_visit(found, waiting.popleft()))
    found.seconds = time.perf_counter() - began
    return found


def _visit(found: Exploration, world: World) -> Iterator[World]:
    for step, after in moves(found.scope, world):
        found.taken[step.what] += 1
        text = found.verdict(found.scope, world, step, after)
        if text:
            found.finding = Finding(text, _path(found, world, text))
            return
        reached = canonical(after)
        if reached not in found.parents:
            found.parents[reached] = world
            yield reached


def _path(found: Exploration, last: World, text: str) -> tuple[tuple[Step, World], ...]:
    """The way to *last* and its one step more, with every owner under one name all the way."""
    line = [last]
    while (before := found.parents[line[-1]]) is not None:
        line.append(before)
    line.reverse()
    world, steps = found.scope.start(), []
    for goal in line[1:]:
        step, world = next(move for move in moves(found.scope, world) if canonical(move[1]) == goal)
        steps.append((step, world))
    ends = (move for move in moves(found.scope, world) if found.verdict(found.scope, world, *move) == text)
    return (*steps, next(ends))
