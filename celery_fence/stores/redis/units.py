"""How seconds and long lists go to a server: in whole milliseconds, and in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from celery_fence.errors import ConfigError

BATCH = 100
"""How many leases one question is about at most: some 30 kB, about a millisecond of the server's time."""

Item = TypeVar("Item")


def batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """*items* in their order, at most 100 at a time."""
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def milliseconds(name: str, seconds: float) -> int:
    """*seconds* in whole milliseconds, at least 1: Redis takes 0 for "delete"."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"the {name} of a lease must be a number of seconds above 0, not {seconds!r}")
    return max(1, round(seconds * 1000))
