"""The table of soak runs in docs/evidence.md: one row for each run, and their sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rig.plan import FAULTS
from rig.report import Report

NAMES = (
    "minutes",
    "rounds",
    "tasks",
    *FAULTS,
    "pauses beyond the TTL",
    "refused writes",
    "violations",
    "lost by the broker",
)
"""The columns that can be added up; a new one goes to the end, where older rows have nothing."""

COLUMNS = ("date", "commit", "minutes", "seeds", *NAMES[1:])
TOTAL = "**total**"


@dataclass(frozen=True, slots=True)
class Row:
    """One soak run: *counts* by column."""

    date: str
    commit: str
    seeds: str
    counts: dict[str, int]

    def __str__(self) -> str:
        texts = {"date": self.date, "commit": self.commit, "seeds": self.seeds}
        return _line(texts.get(name) if name in texts else str(self.counts.get(name, 0)) for name in COLUMNS)


def row_of(reports: Sequence[Report], *, date: str, commit: str, minutes: float, broken: int = 0) -> Row:
    """
    The row of a run's *reports*; *broken* rounds had no end, and count as a violation each.

    Raises `ValueError` where nothing was played.
    """
    seeds = sorted(report.seed for report in reports)
    if not seeds:
        raise ValueError("no round has ended: there is nothing to write down")
    counts: Counter[str] = Counter(rounds=len(seeds), minutes=round(minutes), violations=broken)
    for report in reports:
        counts["tasks"] += report.tasks
        counts.update(report.strikes)
        counts["pauses beyond the TTL"] += report.pauses
        counts["refused writes"] += report.refused
        counts["violations"] += len(report.violations)
        counts["lost by the broker"] += report.lost
    return Row(date, commit, f"{seeds[0]}-{seeds[-1]}", dict(counts))


def add_row(page: Path, row: Row) -> None:
    """Put *row* before the total of the table in *page*, and add the total up again."""
    lines = page.read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(f"| {TOTAL}"))
    lines.insert(place, str(row))
    lines[place + 1] = str(_total(lines, place))
    page.write_text("\n".join(lines) + "\n")


def _total(lines: Sequence[str], place: int) -> Row:
    head = max(number for number in range(place) if lines[number].startswith("| date "))
    counts: Counter[str] = Counter()
    for line in lines[head + 2 : place + 1]:
        cells = dict(zip(COLUMNS, _cells(line), strict=False))
        counts.update({name: int(cells.get(name) or 0) for name in NAMES})
    return Row(TOTAL, "", "", dict(counts))


def _line(cells) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
