"""Watching a round while it is played, until the checkers have something to say."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rig import history
from rig.checkers import Violation, violations
from rig.controls import Control
from rig.plan import make_plan
from rig.round import play

PACE = 0.5
"""Seconds between two looks."""

LIMIT = 60.0
"""Seconds of load within which a control's first violation has to be found."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The first violation of a control, and how many seconds of load it took until it was reported."""

    control: str
    seconds: float
    violation: Violation

    def __str__(self) -> str:
        return f"{self.control:<18} {self.seconds:6.1f} s  {self.violation}"


class Seen(Exception):
    """There is a violation: the round has done its duty."""


class Watch:
    """
    Looks at a run directory in a thread of its own, for violations of *shows*; a context manager.

    Called by the round as its `stop`; leaves the round by `Seen`, without healing and drain.
    """

    def __init__(self, directory: Path, shows: Collection[str]) -> None:
        self.directory = directory
        self.shows = shows
        self.first: tuple[float, Violation] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._over.set()
        self._thread.join()
        return kind is Seen

    def __call__(self) -> bool:
        if self.first is not None:
            raise Seen
        return False

    def _look(self) -> None:
        """What is seen counts if it is still seen the next time: what excuses it may be noted a moment later."""
        before: dict[str, float] = {}
        while self.first is None and not self._over.wait(PACE):
            looked = history.now()
            seen = {str(violation): violation for violation in self._violations()}
            again = [text for text in seen if text in before]
            if again:
                self.first = before[again[0]], seen[again[0]]
            before = dict.fromkeys(seen, looked)

    def _violations(self) -> list[Violation]:
        return [each for each in violations(self.directory, online=True) if each.invariant in self.shows]


def first_violation(
    control: Control, directory: Path, *, seed: int = 0, seconds: float = LIMIT
) -> Finding | None:
    """
    Play a round with *control* until it shows, with its own seed or another.

    None if it doesn't show within *seconds* of load.
    """
    plan = make_plan(seed or control.seed, control.faults, seconds, control=control.name)
    with Watch(directory, control.shows) as watch:
        play(plan, directory, stop=watch)
    if watch.first is None:
        return None
    began = next(record.at for record in history.read(directory) if record.what == "published")
    return Finding(control.name, watch.first[0] - began, watch.first[1])
