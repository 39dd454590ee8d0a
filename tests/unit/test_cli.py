"""What `celery fence` says, and what it costs a Celery that only has it installed."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from celery_fence.cli import COMMANDS, fence
from celery_fence.cli.holders import document_of, lines_about, listing_of
from celery_fence.cli.place import Place
from celery_fence.cli.screen import Listing
from celery_fence.cli.why import _sentences
from celery_fence.cli.words import duration, iso, moment, printable
from celery_fence.locking.store import Facts, History, Holder

ROOT = Path(__file__).parents[2]
NOW = 1_790_000_000.0
FACTS = Facts("billing.sync", "0d3c", "d", 2, "web-1", 4711)

NEWLY_LOADED = """
import json, sys
import celery.bin.base, celery_fence
before = set(sys.modules)
import celery_fence.cli
print(json.dumps(sorted(name for name in set(sys.modules) - before)))
"""


class AnsweringStore:
    """A store of which only the leases are asked."""

    description = "redis://leases:6379/0"

    def __init__(self, *holders):
        self.holders = holders

    def leases(self):
        return iter(self.holders)


def holder(key="tenant:7:sync", left=41.0, beat=19.0, since=NOW - 182, **changes):
    return Holder(key, "owner-1", 1790000000000000, left, since, beat, **{"facts": FACTS, **changes})


def told(held=None, history=None, key="tenant:7:sync", others=()):
    place = Place(AnsweringStore(*others), "fence")
    return list(_sentences(place, key, held, history or History(), NOW))


def test_celery_finds_the_command_by_its_entry_point():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")

    assert parser["options.entry_points"]["celery.commands"].split() == [
        "fence",
        "=",
        "celery_fence.cli:fence",
    ]


def test_a_celery_that_only_starts_loads_nothing_but_the_list_of_commands():
    done = subprocess.run(
        [sys.executable, "-c", NEWLY_LOADED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = json.loads(done.stdout)

    ours = {name for name in loaded if name.startswith("celery_fence")}
    assert ours == {"celery_fence.cli", "celery_fence.cli.place"}
    assert {name.split(".")[0] for name in loaded} - sys.stdlib_module_names == {"celery_fence"}


def test_every_command_is_there_and_explains_itself():
    shown = CliRunner().invoke(fence, ["--help"]).output

    for name in COMMANDS:
        command = fence.get_command(None, name)
        assert isinstance(command, click.Command)
        assert command.help
        assert f"  {name} " in shown


def test_an_unknown_command_is_none():
    assert fence.get_command(None, "laeses") is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (4.24, "4.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (182, "3 min 2 s"),
        (3599.9, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_a_duration_is_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_a_moment_has_its_zone_and_a_date_unless_it_is_today(monkeypatch):
    assert moment(NOW, NOW).split()[0].count(":") == 2
    assert len(moment(NOW, NOW).split()) == 2
    assert len(moment(NOW - 2 * 86400, NOW).split()) == 3


def test_a_moment_for_programs_is_iso_8601_in_utc():
    assert iso(1_790_000_000.25) == "2026-09-21T14:13:20.250000+00:00"
    assert iso(0) is None
    assert iso(None) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tenant:7", "tenant:7"),
        ("ü", "ü"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb", "a\\nb"),
        ("\udc80", "\\udc80"),
    ],
)
def test_nothing_in_a_key_steers_the_terminal(text, shown):
    assert printable(text) == shown


def test_a_live_holder_is_told_with_its_last_beat():
    first, beat, advice = told(holder())

    assert first == "The key 'tenant:7:sync' is held by billing.sync[0d3c]."
    assert (
        beat == "Its holder seems to be alive: the last beat came 19 s ago, and 1 min may pass without one."
    )
    assert advice.endswith("fence release tenant:7:sync --owner owner-1")


def test_a_holder_without_beats_may_be_dead_and_the_key_is_free_in():
    _, beat, _ = told(holder(left=12.0, beat=48.0))

    assert "may be dead, frozen or cut off: no beat for 48 s of the 1 min" in beat
    assert "the key is free in 12 s" in beat


def test_a_lease_that_never_expires_is_said_to_be_no_ttl():
    first, second, _ = told(holder(left=None))

    assert "never expires (NO-TTL)" in first
    assert "made by hand" in second


def test_a_key_that_is_closed_for_its_lost_delay_has_nobody_working_on_it():
    first, second, _ = told(holder(left=8.0, closed=True))

    assert "is closed: its last holder, billing.sync[0d3c], disappeared without releasing it." in first
    assert "Nobody works on it, and it opens in 8.0 s" in second


def test_what_happened_before_the_holder_is_told_when_it_is_known():
    history = History(token=1, granted=NOW - 182, released=NOW - 200, force_released=NOW - 300)
    force = History(token=1, granted=NOW - 182, released=NOW - 300, force_released=NOW - 200)

    assert "Before that it was released at" in told(holder(), history)[2]
    assert "Before that it was force-released by an operator at" in told(holder(), force)[2]
    assert len(told(holder(), History(token=1, granted=NOW - 182))) == 3


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (History(5, granted=NOW - 60, released=NOW - 50), "by its holder or, after its death, by its worker"),
        (History(5, granted=NOW - 60, released=NOW - 90), "never released: its lease expired or vanished"),
        (History(5, granted=NOW - 60), "never released: its lease expired or vanished"),
        (History(5, released=NOW - 60, force_released=NOW - 50), "An operator force-released it at"),
        (History(5, granted=NOW - 40, force_released=NOW - 50), "never released"),
    ],
)
def test_a_free_key_says_how_its_last_use_ended(history, words):
    first, second, *rest = told(None, history)

    assert first == "The key 'tenant:7:sync' is free: nobody holds it."
    assert words in second
    assert rest[-1] == "The last token was 5; the next one is higher."


def test_an_unknown_key_names_held_ones_that_look_like_it():
    others = [holder("tenant:71:sync"), holder("feed:3")]

    assert told(None, key="tenant:72:sync", others=others)[-1].endswith("look like it: tenant:71:sync")
    assert told(None, key="71", others=others)[-1].endswith("look like it: tenant:71:sync")
    assert "spelled differently" in told(None, key="zzz", others=others)[-1]


def test_a_lease_has_the_same_names_in_every_document():
    assert document_of(holder(), NOW) == {
        "key": "tenant:7:sync",
        "state": "held",
        "owner": "owner-1",
        "token": 1790000000000000,
        "since": "2026-09-21T14:10:18+00:00",
        "held_for": 182.0,
        "beat_age": 19.0,
        "ttl_left": 41.0,
        "task": "billing.sync",
        "task_id": "0d3c",
        "retries": 2,
        "host": "web-1",
        "pid": 4711,
    }
    assert document_of(holder(left=None), NOW)["state"] == "no_ttl"
    assert document_of(holder(closed=True), NOW)["state"] == "closed"


def test_a_clock_that_runs_behind_the_store_makes_no_lease_younger_than_its_beat():
    assert document_of(holder(since=NOW + 100), NOW)["held_for"] == 19.0


def test_what_an_operator_reads_before_a_release_has_every_fact():
    text = "\n".join(lines_about(holder(), NOW))

    for fact in ("billing.sync[0d3c], retry 2", "web-1, pid 4711", "held for 3 min 2 s", "19 s ago", "41 s"):
        assert fact in text
    assert "1790000000000000" in text
    assert "owner-1" in text


@pytest.mark.parametrize("width", [80, 120, 300])
def test_no_fact_of_a_lease_is_cut_off_at_any_width(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    long = "tenant:" + "7" * 100
    listing_of([holder(), holder(long), holder("hand", left=None, since=0.0, facts=Facts())], NOW).show()
    lines = capsys.readouterr().out.splitlines()

    shown = " ".join(lines)
    for fact in (
        "tenant:7:sync",
        long,
        "3 min 2 s",
        "41 s",
        "1790000000000000",
        "billing.sync",
        "0d3c",
        "4711",
    ):
        assert fact in shown
    assert "NO-TTL" in shown
    assert all(len(line) <= width for line in lines if line != long)


def test_markup_in_a_cell_is_text(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    Listing(("KEY", "TASK"), [("[red]k[/red]", "a[0d3c]")], ("KEY",), [""]).show()

    assert "[red]k[/red]  a[0d3c]" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["300", ""])
def test_without_rich_the_table_is_aligned_text(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    Listing(("KEY", "TASK"), [("a", "b"), ("long", "c")], ("KEY",), ["", ""]).show()

    assert capsys.readouterr().out == "KEY   TASK\na     b\nlong  c\n"


@pytest.mark.parametrize(("arguments"), [[], ["--id", "1", "--all"]])
@pytest.mark.parametrize("command", ["replay", "purge"])
def test_which_letters_has_to_be_said_and_only_once(command, arguments):
    done = CliRunner().invoke(fence.get_command(None, "dead-letters"), [command, *arguments])

    assert done.exit_code == 2
    assert "--id ID (once or more), or --all of them" in done.output
