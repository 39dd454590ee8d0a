"""Leases with whatever token a test wants, without a store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_fence.locking import current
from celery_fence.locking.lease import Lease
from celery_fence.locking.store import Claim, Granted


def lease(key: str, token: int, owner: str | None = None, **given: Any) -> Lease:
    """A lease on *key*; what it emits lands in its ``source``, a list."""
    told: list[Any] = []
    facts = {
        "asked_at": time.monotonic(),
        "clock": time.monotonic,
        "store": None,
        "renewals": None,
        "source": told,
        "renew_fraction": 1 / 3,
        "max_hold": None,
        "emit": told.append,
    }
    claim = Claim(key, owner or f"owner-{token}", 60.0)
    return Lease(claim, Granted(token, time.time()), **{**facts, **given})


@contextmanager
def under(*leases: Any, mode: Any = "enforce") -> Iterator[Any]:
    """Run the block as a task would that holds *leases*, the innermost last."""
    if not leases:
        yield None
        return
    with current.entered(current.Frame(leases[0], None, mode=mode)), under(*leases[1:], mode=mode):
        yield leases[-1]
