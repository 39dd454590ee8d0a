"""
The checkers: what a run did, against what was promised.

Each file asks one invariant of the plan of the *evidence*: the histories of all processes and the SQL ledger. A checker
reports only what is certain, whatever the load; what it doesn't ask and can't see is in its docstring. None believes
the code it checks: deadlines, ends and holders are computed again from the questions and their answers.
"""

from __future__ import annotations

from pathlib import Path

from rig.checkers import (
    blocks,
    conservation,
    leftovers,
    liveness,
    order,
    progress,
    refusals,
    repeats,
    silence,
    tokens,
    trust,
    windows,
)
from rig.checkers.evidence import Evidence, gather
from rig.checkers.violation import Violation

CHECKERS = (
    blocks,
    windows,
    tokens,
    refusals,
    conservation,
    repeats,
    liveness,
    progress,
    silence,
    trust,
    order,
    leftovers,
)


def violations(run_directory: str | Path, *, online: bool = False) -> list[Violation]:
    """
    Every broken promise that the run directory proves, by moment; none for a good run.

    *online*: the run goes on; then only what can't be mended by what is still to come.
    """
    return judged(gather(run_directory, online=online))


def judged(evidence: Evidence) -> list[Violation]:
    """Every broken promise that *evidence* proves, by moment."""
    found = [violation for checker in CHECKERS for violation in checker.check(evidence)]
    return sorted(found, key=lambda violation: violation.at)


__all__ = ["Violation", "judged", "violations"]
