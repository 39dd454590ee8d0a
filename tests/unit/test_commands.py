"""The commands of a checkout: make and .ci/run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("path", [".ci/run", ".ci/services"])
def test_a_script_is_sound_bash_and_can_be_run(path):
    subprocess.run(["bash", "-n", str(ROOT / path)], check=True, timeout=10)
    assert (ROOT / path).stat().st_mode & 0o111
    assert "set -euo pipefail" in (ROOT / path).read_text()


def test_every_command_is_explained_by_make_help():
    shown = make("help").stdout

    for command in ("demo", "test", "check", "clean", "help"):
        assert f"make {command} " in shown
    assert make().stdout == shown


def test_the_tests_can_be_narrowed_to_some():
    command = make("--dry-run", "test", "TESTS=tests/unit/keys", "ARGS=-k chord").stdout

    assert "-m pytest tests/unit/keys " in command
    assert "-k chord" in command
    assert "tests/integration" not in command
    assert "tests/integration" in make("--dry-run", "test").stdout


def test_make_says_what_to_install_where_no_python_fits(tmp_path):
    done = make("demo", "PYTHON=", f"VENV={tmp_path / 'none'}")

    assert done.returncode != 0
    assert "Python 3.11 or later" in done.stderr
