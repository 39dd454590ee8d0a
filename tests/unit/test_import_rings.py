"""The import rings of setup.cfg hold, and a wrong import would be reported."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_fence"


def lint_imports(directory: Path) -> tuple[int, str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def tree(tmp_path):
    """A copy of the package and its rules, to plant imports in."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "celery_fence", ignore=ignored)
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    return tmp_path


def plant(tree: Path, module: str, line: str) -> None:
    path = tree.joinpath("celery_fence", *module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "__init__.py").touch()
    before = path.read_text() if path.exists() else '"""Planted."""\n'
    path.write_text(f"{before}\n{line}\n")


def test_the_rings_hold(tree):
    code, output = lint_imports(tree)

    assert code == 0, output
    assert " 0 broken" in output


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("errors", "locking"),
        ("locking", "stores"),
        ("locking", "signals"),
        ("locking", "celery"),
        ("locking", "redis"),
        ("stores", "task"),
        ("stores", "observers"),
        ("stores", "celery"),
        ("stores.redis", "stores.memory"),
        ("observers", "stores"),
        ("observers", "prometheus_client"),
        ("fencing", "signals"),
        ("fencing.streams", "sqlalchemy"),
        ("task", "testing"),
        ("task", "sqlalchemy"),
    ],
)
def test_a_planted_import_is_reported(tree, module, imported):
    """*imported* is a part of ours where there is one of that name, else a library."""
    ours = (PACKAGE / imported.split(".")[0]).exists() or imported == "signals"
    target = f"celery_fence.{imported}" if ours else imported
    plant(tree, module, f"import {target}")

    code, output = lint_imports(tree)

    assert code != 0
    assert f"celery_fence.{module} -> {target}" in output


def test_a_module_without_a_place_in_the_rings_is_reported(tree):
    plant(tree, "shared", "")

    code, output = lint_imports(tree)

    assert code != 0
    assert "celery_fence.shared" in output


def test_the_way_round_through_the_package_itself_is_reported(tree):
    """`from celery_fence import hold` inside locking would pull in everything."""
    plant(tree, "", "import celery_fence.task")
    plant(tree, "locking", "import celery_fence")

    code, output = lint_imports(tree)

    assert code != 0
    assert "celery_fence.locking -> celery_fence" in output


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("fencing.sqlalchemy.gate", "import sqlalchemy"),
        ("stores.sql", "import sqlalchemy"),
        ("observers.prometheus", "import prometheus_client"),
        ("cli", "import click"),
    ],
)
def test_an_optional_library_may_be_imported_where_it_belongs(tree, module, line):
    plant(tree, module, line)

    code, output = lint_imports(tree)

    assert code == 0, output


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("place", ["locking", "errors.py"])
def test_the_core_needs_nothing_but_the_standard_library(place):
    allowed = sys.stdlib_module_names | {"celery_fence", "annotationlib"}  # the latter from Python 3.14 on
    path = PACKAGE / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]

    names = {name for file in files for name in imports(file)}

    assert names
    assert {name for name in names if name.split(".")[0] not in allowed} == set()


def test_the_signals_take_nothing_from_celery_but_its_signal_class():
    ours = set(imports(PACKAGE / "signals.py"))

    assert {name for name in ours if name.startswith("celery.")} == {"celery.utils.dispatch"}
    assert "celery" not in ours
