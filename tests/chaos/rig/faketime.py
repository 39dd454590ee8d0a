"""Where libfaketime is, which lies to a process about the time of day."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "CHAOS_FAKETIME"
"""Names the library, where it isn't found by itself."""

DEBIAN = "usr/lib/*/faketime/libfaketime.so.1"

MENDED_SLEEP = Path(__file__).parent / "wrong_clock"
"""A folder that a Python process with a wrong clock needs on its path, first of all."""

MISSING = f"no libfaketime here: install Debian's package faketime, or name it in {VARIABLE}"

REAL_CLOCKS = {"DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
"""Trust is measured on the monotonic clocks, and those never step."""


def library() -> Path | None:
    """
    The library: named by `CHAOS_FAKETIME`, from Debian's package ``faketime``, or from PyPI's ``libfaketime``.

    None where there is none, or where the system has no LD_PRELOAD.
    """
    if not sys.platform.startswith("linux"):
        return None
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    debian = sorted(Path("/").glob(DEBIAN))
    return debian[0] if debian else _from_pypi()


def skewed(seconds: float) -> Mapping[str, str]:
    """The environment of a process whose wall clock is *seconds* ahead, for its whole life; with `MENDED_SLEEP`."""
    return {**_preloaded(), "FAKETIME": f"{seconds:+.0f}"}


def steered(offset: Path) -> Mapping[str, str]:
    """The environment of a process whose wall clock follows the file *offset*, which says such as ``+3600``."""
    return {**_preloaded(), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1"}


def _preloaded() -> dict[str, str]:
    found = library()
    if found is None:
        raise RuntimeError(MISSING)
    return {"LD_PRELOAD": str(found), **REAL_CLOCKS}


def _from_pypi() -> Path | None:
    spec = find_spec("libfaketime")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    return path if path.exists() else None
