"""
I2, tokens grow: accepted tokens of a key never go down, and neither do granted ones.

Asked of the ledger: each accepted token is at least the one before it, and one token belongs to one owner. Asked
of the answers: a grant whose question was put after another grant's answer has the greater token, whatever
happened in between, loss of all data included. Grants whose questions overlap are not compared.

Not asked of two grants between which the server lost data, if its clock had been moved before the later one: a clock
that stepped back AND a lost counter is what the token can't survive, and the design says so.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from rig.checkers.evidence import Asked, Evidence
from rig.checkers.ledger import Row
from rig.checkers.violation import Violation


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each token that went down or was given twice."""
    yield from _accepted(evidence.ledger.writes)
    by_key: defaultdict[str, list[Asked]] = defaultdict(list)
    for grant in evidence.grants():
        by_key[grant.key].append(grant)
    for grants in by_key.values():
        for earlier, later in itertools.chain(_sunk(grants), _twice(grants)):
            if not _excused(evidence, earlier, later):
                yield _granted(earlier, later)


def _accepted(writes: Sequence[Row]) -> Iterator[Violation]:
    last: dict[str, Row] = {}
    owners: dict[tuple[str, int], str] = {}
    for row in writes:
        before = last.get(row.key)
        facts = {"seq": row.seq, "run": row.run, "owner": row.owner}
        if before is not None and row.token < before.token:
            text = f"the accepted tokens of {row.key!r} went down from {before.token} to {row.token}"
            yield Violation("I2", text, facts=facts)
        if owners.setdefault((row.key, row.token), row.owner) != row.owner:
            text = f"two owners wrote to {row.key!r} with the token {row.token}"
            yield Violation("I2", text, facts=facts)
        last[row.key] = row


def _sunk(grants: Sequence[Asked]) -> Iterator[tuple[Asked, Asked]]:
    """Pairs of the highest token answered before a question, and that question's grant if it isn't higher."""
    answered = sorted(grants, key=lambda each: each.answered)
    done = 0
    highest: Asked | None = None
    for grant in sorted(grants, key=lambda each: each.at):
        while answered[done].answered < grant.at:
            if highest is None or answered[done].token > highest.token:
                highest = answered[done]
            done += 1
        if highest is not None and grant.token < highest.token:
            yield highest, grant


def _twice(grants: Sequence[Asked]) -> Iterator[tuple[Asked, Asked]]:
    """Pairs of owners that were given the same token."""
    first: dict[int, Asked] = {}
    for grant in grants:
        before = first.setdefault(grant.token, grant)
        if before.owner != grant.owner:
            yield before, grant


def _excused(evidence: Evidence, earlier: Asked, later: Asked) -> bool:
    return evidence.data_lost(earlier.at, later.answered) and evidence.clock_stepped(0.0, later.answered)


def _granted(earlier: Asked, later: Asked) -> Violation:
    return Violation(
        "I2",
        f"{later.key!r} was granted with token {later.token} after {earlier.token} had been given",
        later.answered,
        {"earlier": earlier, "later": later},
    )
