"""Wait for a fact, with a deadline; the only place in the bench where time passes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")

PATIENCE = float(os.environ.get("FENCE_TEST_PATIENCE", "30"))


def wait_until(fact: Callable[[], T], *, timeout: float = PATIENCE, what: str = "") -> T:
    """The first truthy value of *fact*, asked every 20 ms; fails the test after *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = fact()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout:g} s: {what or fact!r} (last answer: {value!r})")
        time.sleep(0.02)


def stays_true(fact: Callable[[], object], *, during: float) -> bool:
    """Whether *fact* holds at every look for *during* seconds."""
    deadline = time.monotonic() + during
    while time.monotonic() < deadline:
        if not fact():
            return False
        time.sleep(0.02)
    return True
