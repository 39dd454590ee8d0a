"""What a user gets when installing and importing celery-fence."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOURCES = ["setup.cfg", "pyproject.toml", "LICENSE", "README.md", "celery_fence", "tests/unit", "example_app"]
EXTRAS = ["sqlalchemy", "prometheus", "otel", "cli", "embedded", "django", "demo", "test", "lint", "dev"]


@pytest.fixture(scope="module")
def setup_cfg():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return parser


def test_pyproject_holds_only_what_pip_needs():
    assert list(tomllib.loads((ROOT / "pyproject.toml").read_text())) == ["build-system"]


def test_the_core_needs_celery_kombu_and_redis_only_in_versions_that_fit_each_other(setup_cfg):
    needs = setup_cfg["options"]["install_requires"].split()

    assert needs == ["celery[redis]>=5.5", "kombu[redis]", "redis>=5"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_there_for_each_optional_part(setup_cfg, extra):
    assert setup_cfg["options.extras_require"][extra].strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What pip would install, built from the tree by the build backend itself."""
    target = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "tree"
    for path in (path for name in SOURCES for path in files_below(ROOT / name)):
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(target.glob("*.whl")))


def files_below(path: Path) -> list[Path]:
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [file for file in found if file.is_file() and "__pycache__" not in file.parts]


def test_the_wheel_holds_every_module_script_and_type_marker(wheel):
    wanted = [path for path in files_below(ROOT / "celery_fence") if path.suffix in {".py", ".lua", ".typed"}]

    assert {str(path.relative_to(ROOT)) for path in wanted} <= set(wheel.namelist())


def test_the_wheel_tells_celery_of_the_fence_command(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(name).decode())

    assert dict(parser["celery.commands"]) == {"fence": "celery_fence.cli:fence"}


def test_the_wheel_holds_nothing_but_the_package(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}

    assert tops == {"celery_fence", "celery_fence-0.1.0.dist-info"}
