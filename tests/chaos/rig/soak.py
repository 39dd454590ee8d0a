"""
A soak: random rounds one after the other, some side by side, for as long as it is given.

Each round is a process of its own, so one that breaks takes nothing with it. A violation is kept
with its histories, and the soak goes on.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rig.evidence import Row, row_of
from rig.report import Report

SECONDS = 60.0
"""Load of one round."""

PATIENCE = 400.0
"""Seconds after which a round that hasn't ended is broken: its drain alone may take a minute and a half."""

RETENTION_EVERY = 20
"""One round in so many waits until the store has forgotten everything."""

PACE = 0.5
GRACE = 20.0
"""Seconds between two looks at the rounds, and those that an overdue one has to clean up."""

ROOT = Path(__file__).resolve().parents[3]


@dataclass(slots=True)
class Going:
    """A round that is being played."""

    seed: int
    directory: Path
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    hurried: bool = False

    @property
    def overdue(self) -> bool:
        """Whether it takes too long to be alive."""
        return time.monotonic() - self.began > PATIENCE

    @property
    def never_began(self) -> bool:
        """Whether it was asked to end before it could even listen to that."""
        return self.hurried and self.process.returncode == -signal.SIGTERM

    def hurry(self) -> None:
        """Ask it, once, to end its load now."""
        if not self.hurried:
            self.hurried = True
            self.process.terminate()


class Soak:
    """Plays rounds from *seed* on for *minutes*, *side_by_side* at a time, in folders below *home*."""

    def __init__(
        self, home: Path, *, seed: int, minutes: float, side_by_side: int, stop: Callable[[], bool]
    ) -> None:
        self.home = home
        self.minutes = minutes
        self.reports: list[Report] = []
        self.broken: list[Path] = []
        self._next_seed = seed
        self._side_by_side = side_by_side
        self._stop = stop
        self._began = time.monotonic()
        self._going: list[Going] = []

    @property
    def failed(self) -> bool:
        """Whether any promise was broken, or any round."""
        return bool(self.broken) or any(report.violations for report in self.reports)

    def run(self) -> None:
        """Play until the time is over or somebody stops it; what has begun is brought to its end."""
        try:
            while self._going or not self._over:
                self._turn()
        finally:
            for each in self._going:  # asked twice to stop: at once, then
                each.process.terminate()

    def row(self) -> Row:
        """Its row for the table; `ValueError` where no round has ended."""
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return row_of(
            self.reports,
            date=datetime.now(tz=UTC).date().isoformat(),
            commit=commit.stdout.strip(),
            minutes=(time.monotonic() - self._began) / 60,
            broken=len(self.broken),
        )

    def _turn(self) -> None:
        while len(self._going) < self._side_by_side and not self._over:
            self._going.append(self._begin())
        if self._stop():
            for each in self._going:
                each.hurry()
        time.sleep(PACE)
        for each in [each for each in self._going if each.process.poll() is not None or each.overdue]:
            self._end(each)
            self._going.remove(each)

    @property
    def _over(self) -> bool:
        return self._stop() or time.monotonic() - self._began > self.minutes * 60

    def _begin(self) -> Going:
        seed, self._next_seed = self._next_seed, self._next_seed + 1
        directory = self.home / str(seed)
        words = ["round", "--seed", str(seed), "--seconds", f"{SECONDS:g}", "--directory", str(directory)]
        if seed % RETENTION_EVERY == 0:
            words.append("--retention")
        directory.mkdir(parents=True)
        with (directory / "driver.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rig", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the soak, which then asks each round to end.
                start_new_session=True,
            )
        return Going(seed, directory, process)

    def _end(self, going: Going) -> None:
        if going.process.poll() is None:
            going.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                going.process.wait(GRACE)
            going.process.kill()
        try:
            report = Report.read(going.directory)
        except (OSError, ValueError, TypeError, KeyError):  # nothing was written, or half of it
            if going.never_began:
                return
            self.broken.append(going.directory)
            print(f"seed {going.seed}: the round broke, see {going.directory}", flush=True)
            return
        self.reports.append(report)
        print(report, flush=True)
        if not report.violations:
            shutil.rmtree(going.directory, ignore_errors=True)
