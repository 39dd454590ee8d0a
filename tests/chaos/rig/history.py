"""
The history of a chaos run: what each process did, on one clock, kept even if it is killed.

A run directory has `history/*.jsonl`, one file per process. Every record is one line, written by one
`write` to a file opened for appending: a process that is killed leaves at most its last line torn, and
a reader leaves that line out. All processes of a machine share one clock, so records of different
files can be put in order; two moments that lie closer together than a system call is long can't.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = "history"


def now() -> float:
    """Seconds on the clock of every record; never steps, counts suspended time where the system can tell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a history: *what* happened *at* which moment (seconds), in which process, and its facts."""

    what: str
    at: float
    pid: int
    role: str
    facts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The fact called *name*, or *default* where this record has none."""
        return self.facts.get(name, default)


class History:
    """
    The writing end, for one process and its forks.

    Safe to use from threads, greenlets and after a fork: a forked child writes a file of
    its own. Nothing is buffered: what `note` was called for is in the file when it returns.
    """

    def __init__(self, path: str | Path, role: str) -> None:
        """*path* is the run directory (made where it is missing), *role* who writes: `driver`, `worker:<name>`."""
        self.folder = Path(path) / FOLDER
        self.role = role
        self._pid = 0
        self._file = -1

    def note(self, what: str, *, at: float | None = None, **facts: Any) -> float:
        """Append one record and return its moment: *at*, or now. Facts JSON doesn't know are kept as their text."""
        moment = now() if at is None else at
        record = {"what": what, "at": moment, "pid": os.getpid(), "role": self.role, **facts}
        line = json.dumps(record, default=str, separators=(",", ":")) + "\n"
        os.write(self._opened(), line.encode())
        return moment

    def _opened(self) -> int:
        if self._pid != os.getpid():
            self.folder.mkdir(parents=True, exist_ok=True)
            # The moment is part of the name: a process number may come again.
            name = f"{self.role.replace(':', '-')}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
            self._file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._pid = os.getpid()
        return self._file


@dataclass(slots=True)
class Reader:
    """
    The reading end, while the run goes on: each call of `news` gives what was added since the last one.

    A line without its end is left for the next call; so is nothing of a file that appears later.
    """

    directory: Path
    _offsets: dict[Path, int] = field(default_factory=dict)

    def news(self) -> list[Record]:
        """What was added since the last call, by moment."""
        found: list[Record] = []
        for path in sorted((Path(self.directory) / FOLDER).glob("*.jsonl")):
            found.extend(self._added(path))
        return sorted(found, key=lambda record: record.at)

    def _added(self, path: Path) -> Iterator[Record]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + whole
        for line in text[:whole].splitlines():
            yield parsed(line)


def parsed(line: bytes) -> Record:
    """One whole line as a record."""
    facts = json.loads(line)
    return Record(facts.pop("what"), facts.pop("at"), facts.pop("pid"), facts.pop("role"), facts)


def read(directory: str | Path) -> list[Record]:
    """Every whole record of a run directory, by moment."""
    return Reader(Path(directory)).news()
