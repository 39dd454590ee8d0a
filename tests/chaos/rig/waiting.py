"""Waiting for a fact in a rig that goes on after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable


def waited_for(fact: Callable[[], object], seconds: float, *, every: float = 0.05) -> bool:
    """Whether *fact* became true within *seconds*."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
