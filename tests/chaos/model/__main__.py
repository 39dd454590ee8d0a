"""
Explore the protocol model: `python -m tests.chaos.model [--long | --mutate NAME | --limit NAME]`.

Prints how many states and transitions each world has. --mutate takes a rule out and
prints the shortest trace to the promise that breaks; --limit prints the shortest trace
to something that isn't promised. Exits with 1 where the rules as they are break a
promise, or nothing is found that should be.
"""

from __future__ import annotations

import argparse
import sys

from tests.chaos.model.explore import Exploration, explore, find
from tests.chaos.model.limits import LIMITS
from tests.chaos.model.mutations import MUTATIONS
from tests.chaos.model.scope import Scope
from tests.chaos.model.scopes import LONG, SHORT
from tests.chaos.model.trace import told


def main(words: list[str] | None = None) -> int:
    """What is printed, see above; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.model", description="The protocol model.")
    parser.add_argument("--long", action="store_true", help="the large worlds too: ten minutes, 0.6 GB")
    parser.add_argument("--mutate", metavar="NAME", choices=MUTATIONS, help=", ".join(MUTATIONS))
    parser.add_argument("--limit", metavar="NAME", choices=LIMITS, help=", ".join(LIMITS))
    chosen = parser.parse_args(words)
    if chosen.mutate:
        mutation = MUTATIONS[chosen.mutate]
        return _show(mutation.text, explore(mutation.scope, sought=mutation.breaks))
    if chosen.limit:
        limit = LIMITS[chosen.limit]
        return _show(limit.text, find(limit))
    return _show_counts([*SHORT, *(LONG if chosen.long else ())])


def _show(text: str, found: Exploration) -> int:
    print(text)
    print(told(found.finding) if found.finding else "It was not found.")
    return 0 if found.finding else 1


def _show_counts(scopes: list[Scope]) -> int:
    total = [0, 0, 0.0]
    failed = 0
    for scope in scopes:
        found = explore(scope)
        _print_line(scope.name, found.states, found.transitions, found.seconds)
        if found.finding:
            print(told(found.finding))
            failed = 1
        total = [total[0] + found.states, total[1] + found.transitions, total[2] + found.seconds]
    _print_line("all", *total)
    print("A promise is broken, see above." if failed else "No promise is broken.")
    return failed


def _print_line(name: str, states: int, transitions: int, seconds: float) -> None:
    print(f"{name:40} {states:>10,} states {transitions:>12,} transitions {seconds:8.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
