"""
I3, stale writes are refused and counted, and nobody else's are.

Asked of the ledger: no accepted write is below the highest token accepted before it; each refused one met a
greater token, or its own with another owner, and that token's write was accepted. Asked of the workers'
records against it: what a worker says was accepted or refused is in the ledger as that. Can't see an attempt of a
process that was killed before it noted it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rig.checkers.evidence import Evidence
from rig.checkers.ledger import Ledger, Row
from rig.checkers.violation import Violation


def check(evidence: Evidence) -> Iterator[Violation]:
    """Each write that was treated wrongly, or not counted."""
    yield from _stale_accepted(evidence.ledger)
    yield from _newest_refused(evidence.ledger)
    yield from _uncounted(evidence)


def _stale_accepted(ledger: Ledger) -> Iterator[Violation]:
    marks: dict[str, int] = {}
    for row in ledger.writes:
        mark = marks.get(row.key, 0)
        if row.token < mark:
            yield _violation(row, f"a write with token {row.token} was accepted after {mark} on {row.key!r}")
        marks[row.key] = max(mark, row.token)


def _newest_refused(ledger: Ledger) -> Iterator[Violation]:
    accepted: dict[tuple[str, int], set[str]] = {}
    for row in ledger.writes:
        accepted.setdefault((row.key, row.token), set()).add(row.owner)
    for row in ledger.refusals:
        others = accepted.get((row.key, row.seen), set()) - {row.owner}
        if row.seen < row.token or not others:
            yield _violation(
                row, f"token {row.token} was refused on {row.key!r} for {row.seen}, which isn't newer"
            )


def _uncounted(evidence: Evidence) -> Iterator[Violation]:
    counted = {
        "accepted": {(row.run, row.effect) for row in evidence.ledger.writes},
        "refused": {(row.run, row.effect) for row in evidence.ledger.refusals},
    }
    for record in evidence.of("write"):
        outcome = record["outcome"]
        if outcome in counted and (str(record["run"]), str(record["effect"])) not in counted[outcome]:
            text = f"a write of run {record['run']} on {record['key']!r} was {outcome}, but the ledger doesn't say so"
            yield Violation("I3", text, record.at, dict(record.facts))


def _violation(row: Row, text: str) -> Violation:
    return Violation("I3", text, facts={"seq": row.seq, "run": row.run, "owner": row.owner})
