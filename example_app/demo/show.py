"""What the demo shows, from the first line to the exit code: two nights, their stories, their books."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from celery_fence.testing.servers import EmbeddedServer, NoServerError, embedded_server
from example_app.config import LEASE_TTL
from example_app.demo.nights import TENANTS, Morning, Place, Plan, run_night
from example_app.demo.processes import DemoError
from example_app.demo.screen import Screen, Tone, screen_for_this_terminal
from example_app.demo.stopping import Stopped, stopped_by_signals, uninterrupted
from example_app.demo.timeline import timeline
from example_app.demo.verdict import comparison, judge

OK: Final[tuple[str, Tone]] = ("ok   ", "good")
NOT_OK: Final[tuple[str, Tone]] = ("WRONG", "bad")
WRONG = 1
IMPOSSIBLE = 2
FEWEST, MOST = 20, 500
LOUD = ("FREEZES", "WAKES", "REFUSED", "ANSWERED")

WHAT_TO_COPY = "What to copy: example_app/models.py and example_app/tasks.py"

EXPLANATION = """\
A frozen process can't renew its lease, so the next run got the key and a higher
token. The row keeps the token of its last write. The mixin makes each UPDATE
compare, so the frozen run's was refused; the trigger compares for raw SQL. And
whoever repeats a payment that is done is answered from its record."""


def main() -> int:
    """Run the demo; 0: the fenced ledger is right, 1: it is wrong, 2: it couldn't run, 130: Ctrl-C."""
    options = _options()
    screen = screen_for_this_terminal()
    try:
        with stopped_by_signals(), _directory() as directory, _server() as server:
            return _both_nights(options, server, Path(directory), screen)
    except (DemoError, NoServerError) as error:
        screen.say(f"The demo could not run: {error}", "bad")
        return IMPOSSIBLE
    except Stopped as stop:
        screen.say("\nStopped. Every process and file of the demo is gone.", "dim")
        return stop.exit_code


def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fence-demo-", ignore_cleanup_errors=True)


@contextmanager
def _server() -> Iterator[EmbeddedServer]:
    with ExitStack() as stack:
        with uninterrupted():
            server = stack.enter_context(embedded_server())
        yield server


def _both_nights(options: argparse.Namespace, server: EmbeddedServer, directory: Path, screen: Screen) -> int:
    began = time.monotonic()
    plan = Plan(tenants=options.tenants)
    _introduce(plan, screen)
    screen.say("\n1. The night WITH the fence", "title")
    fenced = run_night(plan, _place(server, directory / "fenced"), screen)
    _tell_story(fenced, screen)
    passed = _tell_verdict(plan, fenced, screen)
    if not options.fenced_only:
        screen.say("\n2. The same night WITHOUT the fence: an ordinary Celery task", "title")
        unfenced = run_night(replace(plan, fenced=False), _place(server, directory / "unfenced"), screen)
        _tell_story(unfenced, screen)
        _compare(fenced, unfenced, screen)
    screen.say(f"\nThis took {time.monotonic() - began:.0f} s. {WHAT_TO_COPY}", "dim")
    return 0 if passed else WRONG


def _place(server: EmbeddedServer, directory: Path) -> Place:
    return Place(
        broker_url=server.url_of(0),
        fence_url=server.url_of(1),
        directory=directory,
        database_url=os.environ.get("FENCE_DEMO_DATABASE_URL"),
    )


def _introduce(plan: Plan, screen: Screen) -> None:
    screen.say(f"A billing service charges the invoices of {plan.tenants} tenants at night.")
    screen.say("By accident TWO schedulers send the run, so each tenant gets two messages.")
    screen.say("One worker process will be frozen in the middle of a charge, another killed.")
    screen.say("In the morning a script writes raw SQL, and one payment is sent once more.")
    screen.say(f"lock_ttl is {LEASE_TTL:.0f} s here. This takes about half a minute; Ctrl-C ends it cleanly.")


def _tell_story(morning: Morning, screen: Screen) -> None:
    screen.say("\nThe tenant whose process was frozen", "title")
    for line in timeline(morning.journal):
        screen.say(line, "warn" if any(word in line for word in LOUD) else "")
    if morning.books.refused:
        screen.say(EXPLANATION)


def _tell_verdict(plan: Plan, morning: Morning, screen: Screen) -> bool:
    screen.say("\nWhat the ledger says", "title")
    checks = judge(morning.books, expected_messages=plan.messages, leases_left=morning.leases_left)
    for check in checks:
        mark, tone = OK if check.passed else NOT_OK
        screen.say(f"  {mark}  {check.sentence}", tone)
    passed = all(check.passed for check in checks)
    if not passed:
        screen.say(f"\nThe workers' logs end with:\n{morning.logs}", "dim")
    return passed


def _compare(fenced: Morning, unfenced: Morning, screen: Screen) -> None:
    screen.say("\nThe two nights side by side, counted in the ledgers", "title")
    screen.say(f"  {'':<42} {'with fence':>12} {'without':>12}")
    for name, good, bad in comparison(fenced.books, unfenced.books):
        screen.say(f"  {name:<42} {good:>12} {bad:>12}")
    damage = unfenced.books.charged_again or unfenced.books.wrong_balances
    if not damage:
        screen.say("  The night without the fence was lucky this time: no damage. Run it again.", "warn")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m example_app.demo", description="See what celery-fence does.")
    add = parser.add_argument
    add("--tenants", type=_tenants, default=TENANTS, help="20 to 500 (default: %(default)s)")
    add("--fenced-only", action="store_true", help="leave out the night without the fence")
    return parser.parse_args()


def _tenants(text: str) -> int:
    if not text.isdecimal() or not FEWEST <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is not a number of tenants from {FEWEST} to {MOST}")
    return int(text)
