"""
I8, order: what was published first starts first, per key, for the tasks that promise it.

Which tasks do, the run's first record says (`ordered`); in this version none. Compared are the tokens of each message's
first run: they are the order in which the key was granted, which the moments of the starts needn't be.

Not asked of two messages between whose publishing and start the server lost data. Can't see the order of messages
that never started, nor that of later runs: a retry goes to the back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from rig.checkers.evidence import Evidence
from rig.checkers.violation import Violation


@dataclass(frozen=True, slots=True)
class Turn:
    """When a message was published, and the token of its first run."""

    task_id: str
    published: float
    started: float
    token: int


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each message that started before one that had been published earlier on its key."""
    for key, turns in _turns(evidence).items():
        furthest = turns[0]
        for turn in turns[1:]:
            until = max(turn.started, furthest.started)
            if turn.token < furthest.token and not evidence.data_lost(furthest.published, until):
                text = f"{furthest.task_id} overtook {turn.task_id} on {key!r}, which was published after it"
                yield Violation("I8", text, turn.started, {"overtook": furthest, "overtaken": turn})
            furthest = max(furthest, turn, key=lambda each: each.token)


def _turns(evidence: Evidence) -> dict[str, list[Turn]]:
    """By key, in the order of publishing, the messages that have started."""
    first: dict[str, tuple[int, float]] = {}
    for start in evidence.of("start"):
        if start.get("token"):
            begun = (start["token"], start.at)
            first[start["task_id"]] = min(first.get(start["task_id"], begun), begun)
    ordered = frozenset(evidence.setting("ordered", ()))
    turns: defaultdict[str, list[Turn]] = defaultdict(list)
    for record in evidence.of("published"):
        if record["name"] in ordered and record["task_id"] in first:
            token, started = first[record["task_id"]]
            turns[record["key"]].append(Turn(record["task_id"], record.at, started, token))
    return turns
