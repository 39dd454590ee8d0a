"""
The README and the pages in docs/ do what they say: every Python block is run, every command and link exists.

The Python blocks of a page are one program, as a reader would type it, run in a
process of its own against an embedded server, in the place of the URLs it names. A
page that shows tests has them run by pytest.
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
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LOCAL_REDIS = re.compile(r"redis://(?:localhost|127\.0\.0\.1)(?::\d+)?/(\d+)")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The code of a language, each with the line it starts on."""
    text = page.read_text()
    found = (match for match in BLOCK.finditer(text) if match["language"] == language)
    return [(text.count("\n", 0, match.start("code")), match["code"]) for match in found]


def as_one_program(page: Path, url_of: Callable[[int], str]) -> str:
    """Every Python block in order, on the lines it has in the page: a traceback leads there."""
    program: list[str] = []
    for line, code in blocks(page, "python"):
        program += [""] * (line - len(program))
        program += code.splitlines()
    return LOCAL_REDIS.sub(lambda found: url_of(int(found[1])), "\n".join(program))


each_page = pytest.mark.parametrize("page", PAGES, ids=named)
each_program = pytest.mark.parametrize(
    "page", [page for page in PAGES if page == README or blocks(page, "python")], ids=named
)


@pytest.fixture
def server():
    with embedded_server() as running:
        yield running


@each_program
def test_the_python_blocks_run_as_one_program(page, server, tmp_path):
    program = tmp_path / f"{page.stem}.py"
    program.write_text(as_one_program(page, server.url_of))
    assert program.read_text().strip(), f"{named(page)} shows no program"

    done = subprocess.run(
        [*runner(program), str(program)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def runner(program: Path) -> list[str]:
    """Python; pytest where the page shows tests."""
    if re.search(r"^(def|class) test_?", program.read_text(), re.MULTILINE | re.IGNORECASE):
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return [sys.executable, "-W", "error:::__main__"]


def environment() -> dict[str, str]:
    return {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(ROOT)}


@each_program
def test_every_python_block_can_be_read_by_python(page):
    for line, code in blocks(page, "python"):
        compile("\n" * line + code, str(page), "exec")


def commands(page: Path) -> str:
    shown = [code for language in ("console", "bash", "sh", "shell") for _, code in blocks(page, language)]
    return "\n".join(shown)


@each_page
def test_every_make_command_that_is_named_exists(page):
    makefile = (ROOT / "Makefile").read_text()

    named = set(re.findall(r"\bmake ([a-z]+)\b", commands(page)))

    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_the_readme_names_the_two_commands():
    assert {"demo", "test"} <= set(re.findall(r"\bmake ([a-z]+)\b", commands(README)))


@each_page
def test_every_file_that_is_linked_exists(page):
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """The names by which a page's headings can be linked to."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_every_heading_that_is_linked_exists(page):
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)", page.read_text())

    missing = [
        (target, name)
        for target, name in links
        if name not in anchors(page.parent / target if target else page)
    ]

    assert missing == []
