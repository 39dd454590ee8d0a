"""A failing round says how to play it again, and a soak adds its row to the page."""

from __future__ import annotations

import shutil

import pytest
from rig.command import EVIDENCE
from rig.evidence import add_row, row_of
from rig.report import Report
from rig.soak import Soak

PLAIN = {
    "seed": 12,
    "faults": ("F2", "F6"),
    "seconds": 45.0,
    "tasks": 100,
    "kinds": {"done": 100},
    "strikes": {"F2": 7, "F6": 3},
    "pauses": 5,
    "refused": 2,
    "violations": (),
    "lost": 1,
    "directory": "/tmp/chaos-12",
}


@pytest.fixture
def page(tmp_path):
    copy = tmp_path / "evidence.md"
    shutil.copy(EVIDENCE, copy)
    return copy


def last_rows(page, number):
    """The end of the table that has a total."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    (total,) = (place for place, line in enumerate(lines) if line.startswith("| **total**"))
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[total + 1 - number : total + 1]
    ]


def test_a_violation_is_shown_with_the_one_command_that_plays_the_round_again():
    shown = str(Report(**{**PLAIN, "violations": ("I1: two writers",)}))

    assert "make chaos SEED=12 FAULTS=F2+F6 SECONDS=45" in shown
    assert "I1: two writers" in shown
    assert "/tmp/chaos-12" in shown


def test_what_a_round_waited_for_and_what_was_broken_on_purpose_is_part_of_the_command():
    report = Report(**{**PLAIN, "control": "unfenced", "retention": True})

    assert report.command.endswith("SECONDS=45 CONTROL=unfenced RETENTION=1")


def test_a_good_round_needs_no_command():
    assert "make" not in str(Report(**PLAIN))


def test_a_row_sums_its_rounds_up_and_the_total_sums_the_rows_up(page):
    before = [int(cell or 0) if cell.isdecimal() else 0 for cell in last_rows(page, 1)[0]]
    reports = [Report(**PLAIN), Report(**{**PLAIN, "seed": 13, "violations": ("I2: a step back",)})]
    for _ in range(2):
        add_row(page, row_of(reports, date="2026-01-01", commit="abc", minutes=3, broken=1))
    *_, row, total = last_rows(page, 2)

    assert row == [
        "2026-01-01",
        "abc",
        "3",
        "12-13",
        "2",
        "200",
        "0",
        "14",
        "0",
        "0",
        "0",
        "6",
        "0",
        "0",
        "0",
        "0",
        "0",
        "10",
        "4",
        "2",
        "2",
    ]
    added = [0, 0, 6, 0, 4, 400, 0, 28, 0, 0, 0, 12, 0, 0, 0, 0, 0, 20, 8, 4, 4]
    assert [int(cell or 0) if cell.isdecimal() else 0 for cell in total] == [
        old + new for old, new in zip(before, added, strict=True)
    ]


def test_a_row_of_an_older_soak_is_summed_up_with_what_it_has(page):
    lines = page.read_text().splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("| **total**"))
    lines.insert(place, "| 2026-01-01 | abc | 1 | 1-2 | 2 | 3 |" + " 0 |" * 14)
    page.write_text("\n".join(lines) + "\n")
    tasks = int(last_rows(page, 1)[0][5])
    add_row(page, row_of([Report(**PLAIN)], date="2026-01-02", commit="abc", minutes=3))

    assert int(last_rows(page, 1)[0][5]) == tasks + 3 + 100


def test_a_soak_in_which_nothing_ended_has_no_row():
    with pytest.raises(ValueError, match="no round"):
        row_of([], date="2026-01-01", commit="abc", minutes=3)


def test_a_round_that_was_stopped_before_it_began_is_no_broken_one(tmp_path):
    answers = iter([False, False])  # until the first round was started
    soak = Soak(tmp_path, seed=1, minutes=1, side_by_side=1, stop=lambda: next(answers, True))
    soak.run()

    assert list(tmp_path.iterdir())
    assert not soak.failed
