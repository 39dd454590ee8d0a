"""The chaos suite finds its rig, and the worker of the integration bench, by their own names: so do the workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parent))

from story import Story


@pytest.fixture(scope="session", autouse=True)
def nobody_stays_behind() -> Iterator[None]:
    """Every worker that a round has started is gone at the end."""
    yield
    children = [child.as_dict(["pid", "cmdline"]) for child in psutil.Process().children()]
    assert [child for child in children if "rig.app" in (child["cmdline"] or ())] == []


@pytest.fixture
def story() -> Story:
    """A history to be made by hand, for the checkers."""
    return Story()
