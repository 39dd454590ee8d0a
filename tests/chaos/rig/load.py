"""What is sent in a round: an endless stream of messages, the same for the same seed and faults."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rig.plan import Plan

TASKS = {
    "retry": 8,
    "requeue": 3,
    "skip": 2,
    "dead_letter": 2,
    "raise": 1,
    "bounded": 2,
    "flag": 3,
    "fails": 1,
}
"""Task name -> weight; `rig.tasks` has what they do on a miss."""

GAP, GAPS = 0.04, {"flag": 0.3}
"""How many steps wait between check and write. A run that is only told of its loss goes on to write, and is refused."""

CONTROLLED = {"flag": 15}
LENGTHENED = 5
"""Where something is broken on purpose, it is to show soon: more bodies go on after a loss, and more are long."""

HARMFUL = 0.08
HOOKS = ("heartbeat", "gil", "fork", "fork and exit")
"""F13: what so many bodies do to their own process, and the first ones anyway; see `rig.hooks`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: for task *name* on *key*, sent *copies* times; *plan* is what its body does (see `rig.bodies`)."""

    name: str
    key: str
    copies: int
    plan: dict[str, Any] = field(hash=False)


def messages(plan: Plan) -> Iterator[Message]:
    """The messages of *plan*, in the order in which they are sent; there is no last one."""
    dice = Random(f"{plan.seed}:load")
    names, weights = list(TASKS), list((TASKS | (CONTROLLED if plan.control else {})).values())
    # Some keys are asked for more than others, as in life.
    heat = [1.0 / (1 + number / 8) for number in range(len(plan.keys))]
    for number in itertools.count():
        key = dice.choices(plan.keys, heat)[0]
        name = dice.choices(names, weights)[0]
        yield Message(name, key, _copies(plan, dice), _body(plan, dice, name, number))


def _copies(plan: Plan, dice: Random) -> int:
    roll = dice.random()
    return 1 + (roll < 0.15) + (roll < 0.03) if "F11" in plan.faults else 1


def _body(plan: Plan, dice: Random, name: str, number: int) -> dict[str, Any]:
    """Steps: seconds of work, then a check of the lease, seconds until the write, and the write."""
    seconds, steps = _length(plan, dice), dice.randint(1, 3)
    body: dict[str, Any] = {
        "steps": [
            [
                round(seconds / steps, 3),
                round(dice.uniform(0.2, 1.0) * plan.ttl, 3) if dice.random() < GAPS.get(name, GAP) else 0,
            ]
            for _ in range(steps)
        ]
    }
    if "F13" in plan.faults and (number < len(HOOKS) or dice.random() < HARMFUL):
        body["hook"] = HOOKS[number % len(HOOKS)]
        body["gil"] = round(dice.uniform(1.05, 1.8) * plan.ttl, 3)
    roll = dice.random()
    if roll < 0.03:
        body["then"] = "raise"
    elif "F11" in plan.faults and roll < 0.08:
        body["then"] = "requeue"
    return body


def _length(plan: Plan, dice: Random) -> float:
    """Mostly a few ms; some bodies outlive their first TTL, and with F11 some the visibility timeout."""
    roll = dice.random() / (LENGTHENED if plan.control else 1)
    if "F11" in plan.faults and roll < 0.01:
        return plan.visibility + dice.uniform(0.5, 1.5)
    if roll < 0.03:
        return dice.uniform(1.0, 3.0) * plan.ttl
    if roll < 0.12:
        return dice.uniform(0.1, 0.8) * plan.ttl
    return dice.uniform(0.002, 0.03)
