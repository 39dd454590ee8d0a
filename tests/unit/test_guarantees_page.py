"""
docs/guarantees.md names a test for every end of a run and every copy, in every pool, and for every
fault of the store in each phase of a lease; each of them is there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
PHASES = {"acquire": "test_at_acquire_", "hold": "test_while_held_", "release": "test_at_release_"}
FILES = dict(re.findall(r"^- (\w+): `(test_\w+\.py)`$", PAGE, re.MULTILINE))
NAMED = re.compile(r"^- (\w): `(test_\w+\.py)::(test_\w+)`$", re.MULTILINE)


def rows(columns: list[str] = POOLS) -> list[list[str]]:
    """The rows of every table with these columns, which are the pools unless said otherwise."""
    found, inside = [], False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[1:-1] == columns:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not cells[0].startswith("---"):
            found.append(cells)
    return found


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """Every test of the files that the page names, as pytest finds them."""
    named = {file for _, file, _ in NAMED.findall(PAGE)} | set(FILES.values())
    files = sorted(f"tests/integration/{file}" for file in named)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return {line.removeprefix("tests/integration/") for line in answer.stdout.splitlines()}


def test_the_tables_have_all_ends_and_copies():
    assert len(rows()) > 30


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: cells[0])
def test_every_cell_is_filled_and_its_test_exists(cells, collected):
    *filled, proof = cells
    letter, _, name = proof.partition(" ")
    file, test = {letter: (file, test) for letter, file, test in NAMED.findall(PAGE)}[letter]

    assert all(filled)
    for pool, cell in zip(POOLS, filled[1:], strict=True):
        case = f"{pool}-{name.strip('`')}" if name else pool
        assert cell == "no such thing" or f"{file}::{test}[{case}]" in collected


def test_every_end_that_is_tested_has_its_row(collected):
    """So nobody adds an end to the tests and forgets the page."""
    played = {
        re.search(r"\[prefork-(.*)\]", name)[1]
        for name in collected
        if name.startswith(("test_every_end.py::test_the_key_is", "test_every_shutdown.py"))
        and "[prefork-" in name
    }

    assert played == {cells[-1][2:].strip("`") for cells in rows() if cells[-1][:2] in ("E ", "S ")}


@pytest.mark.parametrize("cells", rows(list(PHASES)), ids=lambda cells: cells[-1])
def test_every_fault_of_the_store_says_what_is_seen_in_each_phase_and_has_a_test_for_it(cells, collected):
    *filled, proof = cells
    family, name = re.fullmatch(r"(\w+) `(.+)`", proof).groups()

    assert all(filled)
    for phase, begins in PHASES.items():
        tests = [test for test in collected if test.startswith(f"{FILES[family]}::{begins}")]
        assert any(test.endswith(f"[{name}]") for test in tests), phase


def test_every_fault_that_is_tested_has_its_row(collected):
    """So nobody adds a fault to the tests and forgets the page."""
    played = set()
    for family, file in FILES.items():
        begins = f"{file}::{PHASES['acquire']}"
        names = (test.partition("[")[2].rstrip("]") for test in collected if test.startswith(begins))
        played |= {f"{family} `{name}`" for name in names}

    assert played == {cells[-1] for cells in rows(list(PHASES))}


def test_every_test_file_that_the_page_names_exists():
    named = re.findall(r"`((?:unit|integration|property|contract)/[\w*]+(?:\.py|/))`", PAGE)
    named += [f"integration/{file}" for file in re.findall(r"`(test_\w+\.py)", PAGE)]

    assert [name for name in named if not list((ROOT / "tests").glob(name.rstrip("/")))] == []
