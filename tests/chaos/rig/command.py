"""The command line of the rig."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rig import faketime
from rig.controls import CONTROLS
from rig.evidence import add_row
from rig.plan import FAULTS, make_plan, random_faults
from rig.round import play
from rig.soak import ROOT, Soak

SECONDS = 8.0
"""Load of one round, where nothing else is said."""

CLOCKS = "F10"
"""The fault that takes a library which isn't everywhere."""

EVIDENCE = ROOT / "docs" / "evidence.md"


def main(words: Sequence[str]) -> int:
    """Do what the command line says; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m rig")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_round(commands.add_parser("round", help="play one round"))
    _add_soak(commands.add_parser("soak", help="play random rounds for a long time"))
    options = parser.parse_args(words)
    return {"round": _round, "soak": _soak}[options.command](options)


def _add_round(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--faults",
        type=named_faults,
        help=f"such as F2+F6, or none; one or two by the seed without it. {'+'.join(FAULTS)}",
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds of load")
    parser.add_argument("--control", choices=CONTROLS, help="break something on purpose: a negative control")
    parser.add_argument(
        "--retention", action="store_true", help="wait until the store has forgotten everything"
    )
    parser.add_argument("--directory", type=Path, help="a new folder for the histories")


def _add_soak(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, help="of the first round; by the time of day without it")
    parser.add_argument("--side-by-side", type=int, default=2, help="rounds at a time")
    parser.add_argument("--directory", type=Path, help="where the histories go")
    parser.add_argument("--evidence", type=Path, default=EVIDENCE, help="the page with the table")


def _round(options: argparse.Namespace) -> int:
    faults = random_faults(options.seed, playable()) if options.faults is None else options.faults
    plan = make_plan(
        options.seed, faults, options.seconds, control=options.control, retention=options.retention
    )
    directory = options.directory or Path(tempfile.mkdtemp(prefix=f"chaos-{options.seed}-"))
    stopped = Stopped()
    report = play(plan, directory, stop=stopped)
    print(report, flush=True)
    if not report.violations and options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    return int(bool(report.violations))


def _soak(options: argparse.Namespace) -> int:
    seed = options.seed if options.seed is not None else int(time.time()) % 10**8 * 100
    home = options.directory or Path(tempfile.mkdtemp(prefix="chaos-soak-"))
    if CLOCKS not in playable():
        print(f"{CLOCKS} is left out: {faketime.MISSING}", flush=True)
    soak = Soak(home, seed=seed, minutes=options.minutes, side_by_side=options.side_by_side, stop=Stopped())
    print(f"histories in {home}, first seed {seed}", flush=True)
    soak.run()
    if soak.reports:
        row = soak.row()
        add_row(options.evidence, row)
        print(row, flush=True)
    return int(soak.failed or not soak.reports)


def playable() -> tuple[str, ...]:
    """The faults that this machine can play."""
    return tuple(fault for fault in FAULTS if fault != CLOCKS or faketime.library() is not None)


def named_faults(words: str) -> tuple[str, ...]:
    """The faults that *words* name: ``F2+F6``, or ``none``."""
    names = () if words == "none" else tuple(words.split("+"))
    for unknown in set(names) - set(FAULTS):
        raise argparse.ArgumentTypeError(f"{unknown!r} is none of {', '.join(FAULTS)}; write F2+F6, or none")
    if set(names) - set(playable()):
        raise argparse.ArgumentTypeError(f"{CLOCKS} can't be played: {faketime.MISSING}")
    return names


class Stopped:
    """True once the process was asked to end: what has begun is brought to its end first."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def __call__(self) -> bool:
        return self.asked

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            sys.exit(130)
        self.asked = True
