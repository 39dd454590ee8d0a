"""
Many writers with random tokens against one guarded row, and the checker of what came of it.

Each writer reads a counter, adds one, and notes the new value with its token and owner
in a ledger, in one transaction. The ledger shows all: a token that goes down is a stale
write that was let through, a value that is there twice is a change that was overwritten.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

ROUNDS = int(os.environ.get("FENCE_ROUNDS", "20"))
"""How many rounds a contest has; 1000 for a thorough run."""

WRITERS = 20


@dataclass(frozen=True)
class Bid:
    """One writer of one round."""

    token: int
    owner: str


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    value: int
    token: int
    owner: str


@dataclass(frozen=True)
class Outcome:
    """Who was told that their write counts, and who that it was stale."""

    accepted: set[Bid]
    refused: set[Bid]


def contest(write: Callable[[Bid], bool], *, rounds: int = ROUNDS, seed: int = 0) -> Outcome:
    """
    Let 20 writers at a time *write*, which says whether it was accepted.

    The tokens of a round overlap with those of the rounds around it, and so some
    are equal to one of another owner.
    """
    chance = random.Random(seed)
    accepted: set[Bid] = set()
    refused: set[Bid] = set()
    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(rounds):
            tokens = chance.sample(range(number * 10 + 1, number * 10 + 61), WRITERS)
            bids = [Bid(token, f"{number}-{token}") for token in tokens]
            for bid, passed in zip(bids, pool.map(write, bids), strict=True):
                (accepted if passed else refused).add(bid)
    return Outcome(accepted, refused)


def violations(ledger: Iterable[Entry], outcome: Outcome, final: Entry) -> list[str]:
    """What is wrong with a *ledger* in the order of its values, whose row is *final* at the end."""
    entries = list(ledger)
    wrong = [
        f"the token went down from {before} to {after}"
        for before, after in itertools.pairwise(entries)
        if (after.token, after.owner) != (before.token, before.owner) and after.token <= before.token
    ]
    values = [entry.value for entry in entries]
    wrong += [
        f"value {value} was written {times} times" for value, times in Counter(values).items() if times > 1
    ]
    if set(values) != set(range(1, len(set(values)) + 1)):
        wrong.append(f"values are missing from 1 to {max(values, default=0)}")
    told = sorted((bid.token, bid.owner) for bid in outcome.accepted)
    if sorted((entry.token, entry.owner) for entry in entries) != told:
        wrong.append("the ledger isn't what the writers were told")
    best = max(bid.token for bid in outcome.accepted | outcome.refused)
    if final.token != best:
        wrong.append(f"the newest writer ({best}) was refused, the row shows {final.token}")
    if entries and final != entries[-1]:
        wrong.append(f"the row shows {final}, the ledger ends with {entries[-1]}")
    return wrong
