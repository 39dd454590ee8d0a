"""
I1, mutual exclusion of effects: the accepted writes of a key form blocks.

Asked of the ledger alone: once another grant's write was accepted for a key, no write of an
earlier grant follows. A grant is its token and its owner. Can't see a run that wrote nothing, nor
two runs whose effects never met.
"""

from __future__ import annotations

from collections.abc import Iterator

from rig.checkers.evidence import Evidence
from rig.checkers.ledger import Row
from rig.checkers.violation import Violation

Grant = tuple[int, str]


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each accepted write that falls into the block of another grant."""
    last: dict[str, Row] = {}
    closed: set[tuple[str, Grant]] = set()
    for row in evidence.ledger.writes:
        before = last.get(row.key)
        if before is not None and grant(before) != grant(row):
            closed.add((row.key, grant(before)))
        if (row.key, grant(row)) in closed:
            yield Violation(
                "I1",
                f"the write {row.effect} (token {row.token}) on {row.key!r} came after a write of another grant had "
                "ended its block",
                facts={"seq": row.seq, "owner": row.owner, "run": row.run},
            )
        last[row.key] = row


def grant(row: Row) -> Grant:
    """Which grant wrote *row*."""
    return row.token, row.owner
