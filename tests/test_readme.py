"""
The README does what it says: every Python block is run, every command exists.

A block that defines an app is run in a process of its own against an embedded
server, in the place of the URLs it names; later blocks go on in the same
process, as a reader would.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_fence.testing.servers import embedded_server

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"

BLOCK = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LOCAL_REDIS = re.compile(r"redis://(?:localhost|127\.0\.0\.1)(?::\d+)?/(\d+)")


def blocks(language: str) -> list[tuple[int, str]]:
    """The code of a language, each with the line it starts on."""
    text = README.read_text() if README.exists() else ""
    found = (match for match in BLOCK.finditer(text) if match["language"] == language)
    return [(text.count("\n", 0, match.start("code")), match["code"]) for match in found]


def as_one_program(url_of: Callable[[int], str]) -> str:
    """Every Python block in order, on the lines it has in the README: a traceback leads there."""
    program: list[str] = []
    for line, code in blocks("python"):
        program += [""] * (line - len(program))
        program += code.splitlines()
    return LOCAL_REDIS.sub(lambda found: url_of(int(found[1])), "\n".join(program))


@pytest.fixture(scope="module")
def server():
    with embedded_server() as running:
        yield running


def test_the_python_blocks_run_as_one_program(server, tmp_path):
    program = tmp_path / "README.py"
    program.write_text(as_one_program(server.url_of))
    assert program.read_text().strip(), "the README shows no program"

    done = subprocess.run(
        [sys.executable, "-W", "error:::__main__", str(program)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def environment() -> dict[str, str]:
    return {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(ROOT)}


def test_every_python_block_can_be_read_by_python():
    for line, code in blocks("python"):
        compile("\n" * line + code, str(README), "exec")


def commands() -> str:
    shown = [code for language in ("console", "bash", "sh", "shell") for _, code in blocks(language)]
    return "\n".join(shown)


def test_every_make_command_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()

    named = set(re.findall(r"\bmake ([a-z]+)\b", commands()))

    assert {"demo", "test"} <= named
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_every_file_that_is_linked_exists():
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", README.read_text())

    assert [target for target in targets if not (ROOT / target).exists()] == []
