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
from textwrap import wrap

import click

from celery_fence.cli.words import printable

GAP = "  "

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Listing:
    """
    *rows* under the names of *columns*.

    On a narrow screen a row is the columns *short*, and its own text of *below* under them.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    short: Sequence[str]
    below: Sequence[str]

    def show(self) -> None:
        """Print it in the way that suits the screen."""
        rows = [tuple(printable(cell) for cell in row) for row in self.rows]
        width = screen_width()
        if width is None:
            _show_plain(self.columns, rows)
        elif _width_of([self.columns, *rows]) <= width:
            _show_table(self.columns, rows, width)
        else:
            self._show_in_two_lines(rows, width)

    def _show_in_two_lines(self, rows: Sequence[Row], width: int) -> None:
        places = [self.columns.index(name) for name in self.short]
        short = [self.short, *([row[place] for place in places] for row in rows)]
        header, *lines = _fitted(short, width)
        click.secho(header, bold=True)
        for line, text in zip(lines, self.below, strict=True):
            click.echo(line)
            for part in wrap(printable(text), width, initial_indent=GAP, subsequent_indent=GAP):
                click.secho(part, dim=True)


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


def _fitted(rows: Sequence[Row], width: int) -> list[str]:
    """As `_aligned`, but a first cell that would make the rows wider than *width* has a line of its own."""
    most = max(width - _width_of([row[1:] for row in rows]), len(rows[0][0]))
    cut = [(row[0] if len(row[0]) <= most else "", *row[1:]) for row in rows]
    return [
        line if cell[0] == row[0] else f"{row[0]}\n{line}"
        for row, cell, line in zip(rows, cut, _aligned(cut), strict=True)
    ]


def _width_of(rows: Sequence[Row]) -> int:
    """With a gap behind each column."""
    widths = _widths(rows)
    return sum(widths) + len(GAP) * len(widths)


def _widths(rows: Sequence[Row]) -> list[int]:
    return [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
