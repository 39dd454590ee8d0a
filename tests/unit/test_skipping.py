"""A missing service is a skip at home and a failure on CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

SUITE = """
import pytest

def test_that_skips(): pytest.skip("no wheel")

@pytest.mark.needs("nothing_listens_here")
def test_that_needs(): pass

@pytest.mark.skip(reason="marked")
def test_that_is_marked(): pass

def test_that_may_skip(): pytest.skip("also on CI: right here too")

@pytest.mark.xfail
def test_that_is_expected_to_fail(): assert 0

def test_that_passes(): pass
"""


@pytest.fixture
def run(tmp_path):
    """Run a small suite under our conftest, with the environment variable CI as given."""
    conftest = CONFTEST.read_text().replace('PORTS = {"redis"', 'PORTS = {"nothing_listens_here": 1, "redis"')
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_suite.py").write_text(SUITE)

    def run(ci: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "test_suite.py"]
        environment = {**os.environ, "CI": ci}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        ).stdout

    yield run
    shutil.rmtree(tmp_path)


def test_at_home_what_is_missing_is_skipped_with_its_reason(run):
    output = run("")

    assert "1 passed, 4 skipped, 1 xfailed" in output
    assert "no nothing_listens_here at 127.0.0.1:1" in output


def test_on_ci_a_skip_is_a_failure_unless_it_says_that_it_is_right_there(run):
    output = run("true")

    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors" in output
    assert "nothing may be skipped on CI: no nothing_listens_here" in output


def test_on_ci_a_module_that_skips_itself_is_a_failure(run, tmp_path):
    with (tmp_path / "test_suite.py").open("a") as suite:
        suite.write('pytest.importorskip("a_library_that_is_not_there")\n')

    assert "1 skipped" in run("")
    assert "nothing may be skipped on CI" in run("true")
