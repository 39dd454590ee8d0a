"""A trace for people: one line for each step, with what the store keeps and whom the owners trust after it."""

from __future__ import annotations

from tests.chaos.model.explore import Finding
from tests.chaos.model.scope import FAULTS
from tests.chaos.model.steps import Step
from tests.chaos.model.world import HOLDING, NAMES, Owner, World

TEXTS = {
    "ask": "{who} asks for the key",
    "enter": "{who} reads its grant and starts",
    "too late": "{who} reads its grant too late to trust it, and gives it back",
    "renew": "{who} asks for a renewal",
    "write": "{who} writes with its token, accepted",
    "refused": "{who} writes with its token, refused",
    "end": "{who} ends and releases",
    "stop": "{who} stops, to come again, and releases",
    "die": "{who} dies",
    "parent": "the parent of {who} gives its lease back",
    "interrupt": "{who} is interrupted and gives back what it may have been granted",
    "tick": "a tick passes",
    "copy": "a replica has what the store keeps, and lags from now on",
    "catch_up": "the server's clock is right again",
    "acquire arrives": "acquire of {who} arrives",
    "renewal arrives": "renewal of {who} arrives",
    "release arrives": "release of {who} arrives",
    "note arrives": "note of {who} arrives",
}


def told(found: Finding) -> str:
    """The trace, and what its last step shows."""
    lines = [_line(number, step, world) for number, (step, world) in enumerate(found.steps, 1)]
    return "\n".join([*lines, f"  => {found.text}"])


def _line(number: int, step: Step, world: World) -> str:
    text = TEXTS.get(step.what, FAULTS.get(step.what, step.what)).format(who=step.who)
    if step.answer:
        reason = f" ({step.answer.reason})" if step.answer.reason else ""
        text += f": {step.answer.word}{reason}"
    return f"{number:3}. {text:<58} {_store(world)}; {_trust(world)}"


def _store(world: World) -> str:
    lease, counter = world.key.lease, world.key.counter
    kept = f"{lease.owner} has token {lease.token}, {lease.left} left" if lease else "free"
    return f"{kept}, counter {counter.token}"


def _trust(world: World) -> str:
    named = zip(NAMES, world.owners, strict=False)
    return "trusting: " + (
        ", ".join(_trusts(name, owner) for name, owner in named if _is_at_work(owner)) or "none"
    )


def _trusts(name: str, owner: Owner) -> str:
    return f"{name} for {owner.trust} (token {owner.token})"


def _is_at_work(owner: Owner) -> bool:
    return owner.phase == HOLDING and owner.trust > 0
