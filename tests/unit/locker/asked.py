"""What a locker is asked for, and what interrupts it."""

from __future__ import annotations

from celery_fence.locking.store import Claim, Ending

DELIVERED = Claim("job:1", "me", 30.0, delivery="d1", message="m1")
RETURNED = Ending("returned")


class Interruption(Exception):
    """What a soft time limit is to us: it strikes at any line, and the process goes on."""
