"""What the person sees while it runs: a live bar with rich on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal, Protocol

Tone = Literal["", "title", "warn", "good", "bad", "dim"]
STYLES: dict[Tone, str] = {
    "": "",
    "title": "bold",
    "warn": "yellow",
    "good": "green",
    "bad": "bold red",
    "dim": "dim",
}


class Bar(Protocol):
    """Progress of one night."""

    def show(self, done: int, note: str) -> None:
        """So many messages are done."""


class Screen(Protocol):
    """Where lines and progress go."""

    def say(self, line: str = "", tone: Tone = "") -> None:
        """Show one line."""

    def bar(self, total: int) -> Any:
        """A context manager that gives a `Bar`."""


def screen_for_this_terminal() -> Screen:
    """The best that standard output can show."""
    if sys.stdout.isatty() and find_spec("rich"):
        return LiveScreen()
    return PlainScreen()


class PlainScreen:
    """Lines only, each written at once: for logs, pipes and terminals without rich."""

    def say(self, line: str = "", tone: Tone = "") -> None:
        """Show one line; its tone is in the words."""
        del tone
        print(line, flush=True)

    @contextmanager
    def bar(self, total: int) -> Iterator[Bar]:
        """One line for each quarter."""
        yield PlainBar(total)


class PlainBar:
    """Says something when a quarter is done, and nothing in between."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._quarter = 0

    def show(self, done: int, note: str) -> None:
        """So many messages are done."""
        quarter = done * 4 // self._total
        if quarter > self._quarter:
            self._quarter = quarter
            print(f"  {done:>4} of {self._total} messages done   {note}", flush=True)


class LiveScreen:
    """With rich: a bar that stays at the bottom, colours for what matters."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def say(self, line: str = "", tone: Tone = "") -> None:
        """Show one line above the bar."""
        self._console.print(line, style=STYLES[tone] or None)

    @contextmanager
    def bar(self, total: int) -> Iterator[Bar]:
        """A bar that is redrawn in place."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            yield LiveBar(progress, progress.add_task("messages", total=total))


class LiveBar:
    """A row of rich's progress display."""

    def __init__(self, progress: Any, row: Any) -> None:
        self._progress = progress
        self._row = row

    def show(self, done: int, note: str) -> None:
        """So many messages are done."""
        self._progress.update(self._row, completed=done, description=note)
