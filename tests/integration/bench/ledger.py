"""
What the task bodies did, in the order in which they did it.

Each fact is one JSON line, appended with a single write to a file opened with
O_APPEND, so that any number of processes may write and none overwrites another.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Fact = dict[str, Any]


class Ledger:
    """The append-only file behind one bench."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def note(self, what: str, **facts: Any) -> None:
        """Append one fact with the process id and this machine's monotonic clock."""
        line = json.dumps({"what": what, "pid": os.getpid(), "at": time.monotonic(), **facts}, default=repr)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode() + b"\n")
        finally:
            os.close(handle)

    def facts(self, what: str | None = None, **like: Any) -> list[Fact]:
        """Every fact so far of that kind whose fields equal *like*."""
        wanted = like if what is None else {"what": what, **like}
        return [
            fact for fact in self._read() if all(fact.get(name) == value for name, value in wanted.items())
        ]

    def starts(self, key: str) -> list[Fact]:
        """The body runs that began on *key*."""
        return self.facts("start", key=key)

    def ends(self, key: str) -> list[Fact]:
        """The body runs that ended on *key*, however they ended."""
        return self.facts("end", key=key)

    def tokens(self, key: str) -> list[int]:
        """The fencing tokens of *key*, in the order in which the bodies began."""
        return [fact["token"] for fact in self.starts(key)]

    def overlaps(self, key: str) -> list[tuple[Fact, Fact]]:
        """Pairs of neighbours of which the later began before the earlier ended: two effects at one time."""
        runs = sorted(self._runs(key), key=lambda run: run[0]["at"])
        pairs = itertools.pairwise(runs)
        return [
            (first, second) for (first, end), (second, _) in pairs if end is None or second["at"] < end["at"]
        ]

    def _runs(self, key: str) -> Iterator[tuple[Fact, Fact | None]]:
        ends = {fact["run"]: fact for fact in self.ends(key)}
        for start in self.starts(key):
            yield start, ends.get(start["run"])

    def _read(self) -> list[Fact]:
        if not self.path.exists():
            return []
        whole_lines = self.path.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole_lines.splitlines()]


class Gate:
    """A file that a body waits for: closed until the test opens it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def is_open(self) -> bool:
        """Whether the test has opened it."""
        return self.path.exists()

    def open(self) -> None:
        """Let the waiting bodies go on, and those to come."""
        self.path.touch()

    def wait(self, timeout: float = 60.0) -> None:
        """Block the body until the gate opens; `TimeoutError`, so a forgotten gate can't hang a worker."""
        deadline = time.monotonic() + timeout
        while not self.is_open:
            if time.monotonic() > deadline:
                raise TimeoutError(self.path)
            time.sleep(0.02)

    def spin(self, timeout: float = 60.0) -> None:
        """Like `wait`, but burning CPU and never yielding to another greenlet."""
        deadline = time.monotonic() + timeout
        while not os.access(self.path, os.F_OK):
            if time.monotonic() > deadline:
                raise TimeoutError(self.path)
            sum(range(2000))
