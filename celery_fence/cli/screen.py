"""
Rows on a screen: a table where there is room, two lines for each row where there isn't.

What goes into a pipe or a file is always the whole table, one line for each row, so
that ``grep`` and ``awk`` see all of it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from celery_fence.cli.words import printable

GAP = "  "

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Listing:
    """
    *rows* under the names of *columns*.

    On a narrow screen a row is the columns *short*, and *rest* of it below them.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    short: Sequence[str]
    rest: Sequence[str]

    def show(self) -> None:
        """Print it in the way that suits the screen."""
        rows = [tuple(printable(cell) for cell in row) for row in self.rows]
        width = screen_width()
        if width is None:
            _show_plain(self.columns, rows)
        elif _width_of(self.columns, rows) <= width:
            _show_table(self.columns, rows, width)
        else:
            self._show_in_two_lines(rows)

    def _show_in_two_lines(self, rows: Sequence[Row]) -> None:
        places = [self.columns.index(name) for name in self.short]
        lines = _aligned([self.short, *([row[place] for place in places] for row in rows)])
        click.secho(lines[0], bold=True)
        for line, row in zip(lines[1:], rows, strict=True):
            click.echo(line)
            click.secho(GAP + self._below(row), dim=True)

    def _below(self, row: Row) -> str:
        named = dict(zip(self.columns, row, strict=True))
        return " ".join(text.format_map(named) for text in self.rest)


def screen_width() -> int | None:
    """How many columns the screen has; None for a pipe or a file, unless COLUMNS says otherwise."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def _show_plain(columns: Row, rows: Sequence[Row]) -> None:
    click.echo("\n".join(_aligned([columns, *rows])))


def _show_table(columns: Row, rows: Sequence[Row], width: int) -> None:
    """With rich where it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        _show_plain(columns, rows)
        return
    table = Table(*columns, box=None, header_style="bold", pad_edge=False, padding=(0, len(GAP), 0, 0))
    for row in rows:
        # As texts: what stands in brackets, such as a task's id, would be taken for markup.
        table.add_row(*(Text(cell) for cell in row))
    Console(width=width, highlight=False).print(table)


def _aligned(rows: Sequence[Row]) -> list[str]:
    widths = _widths(rows)
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _width_of(columns: Row, rows: Sequence[Row]) -> int:
    widths = _widths([columns, *rows])
    return sum(widths) + len(GAP) * len(widths)


def _widths(rows: Sequence[Row]) -> list[int]:
    return [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
