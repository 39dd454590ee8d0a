"""What a round came to, in numbers, and how to play it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from rig import history
from rig.checkers import violations
from rig.checkers.ledger import read_ledger
from rig.plan import FAULTS, replay_command
from rig.transit import Transit

FILE = "report.json"
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Report:
    """
    One round: what was sent and what it came to, how often each fault struck.

    *pauses* are those of a process that held a lease, for longer than the TTL; *lost* counts
    the deliveries that killed workers took along (see `rig.transit`).
    """

    seed: int
    faults: tuple[str, ...]
    seconds: float
    tasks: int
    kinds: dict[str, int]
    strikes: dict[str, int]
    pauses: int
    refused: int
    violations: tuple[str, ...]
    directory: str
    control: str | None = None
    retention: bool = False
    lost: int = 0

    @property
    def command(self) -> str:
        """The one command that plays this round again."""
        return replay_command(
            self.seed, self.faults, self.seconds, control=self.control, retention=self.retention
        )

    def write(self) -> Self:
        """Leave it in the run directory."""
        (Path(self.directory) / FILE).write_text(json.dumps(asdict(self), indent=1))
        return self

    @classmethod
    def read(cls, directory: Path) -> Report:
        """The report in a run directory. `FileNotFoundError` where the round didn't get that far."""
        facts = json.loads((directory / FILE).read_text())
        return cls(**{**facts, "faults": tuple(facts["faults"]), "violations": tuple(facts["violations"])})

    def __str__(self) -> str:
        told = (
            f"seed {self.seed}, faults {'+'.join(self.faults) or 'none'}, {self.seconds:g} s: {self.tasks} tasks "
            f"{_counts(self.kinds)}; strikes {_counts(self.strikes)}; {self.pauses} pauses beyond the TTL; "
            f"{self.refused} refused writes; {self.lost} lost by the broker; {len(self.violations)} violations"
        )
        if not self.violations:
            return told
        shown = [f"  {violation}" for violation in self.violations[:MOST_SHOWN]]
        return "\n".join((told, *shown, f"  histories: {self.directory}", f"  replay: {self.command}"))


def report_on(directory: Path) -> Report:
    """Read a run directory and have it checked."""
    records = history.read(directory)
    run = next(record for record in records if record.what == "run")
    outcomes = Counter(record["kind"] for record in records if record.what == "outcome")
    return Report(
        seed=run["seed"],
        faults=tuple(run["faults"]),
        seconds=run["seconds"],
        tasks=sum(record.what == "published" for record in records),
        kinds=dict(outcomes.most_common()),
        strikes=_strikes(records),
        pauses=sum(
            bool(record["holders"]) and record["ended"] - record["began"] > run["ttl"]
            for record in records
            if record.what == "pause"
        ),
        refused=len(read_ledger(directory, records).refusals),
        violations=tuple(str(violation) for violation in violations(directory)),
        directory=str(directory),
        control=run["control"],
        retention=run["waits_for_retention"],
        lost=_lost(records),
    )


def _strikes(records: Sequence[history.Record]) -> dict[str, int]:
    """How often each fault struck; F11 is every copy: sent on purpose, requeued, or brought again by the broker."""
    counts = Counter(
        record["fault"] for record in records if record.what == "fault" and record["phase"] == "begin"
    )
    counts["F11"] += sum(record["copies"] - 1 for record in records if record.what == "published")
    counts["F11"] += sum(record.what == "requeued" or bool(record.get("redelivered")) for record in records)
    return {fault: counts[fault] for fault in FAULTS if counts[fault]}


def _lost(records: Sequence[history.Record]) -> int:
    transit = Transit()
    transit.read(records)
    return len(transit.losses().explained)


def _counts(counts: dict[str, int]) -> str:
    return "(" + ", ".join(f"{name} {number}" for name, number in counts.items()) + ")"
