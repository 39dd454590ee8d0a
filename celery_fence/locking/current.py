"""
The lease that the running code works under.

Kept in a context variable: each thread and each greenlet has its own, and a
nested call sees the leases of the calls around it. A thread that the body starts
by itself sees none; hand it the `Lease`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from celery_fence.locking.lease import Lease
from celery_fence.locking.null_lease import NullLease


@dataclass(frozen=True, slots=True)
class Frame:
    """
    One entered lease; *task* is the task it was entered for, or None for a bare `hold`; *mode* is for its guards.

    *record* is the idempotency key of the work that is done under it, empty where it has none.
    """

    lease: Lease | NullLease
    task: Any
    run: Any = None
    mode: Literal["enforce", "shadow", "off"] = "enforce"
    record: str = ""


_frames: ContextVar[tuple[Frame, ...]] = ContextVar("celery_fence_frames", default=())


def frames() -> tuple[Frame, ...]:
    """All leases that are entered here, the innermost last."""
    return _frames.get()


def current_lease() -> Lease | NullLease | None:
    """The innermost lease that the running code is under, or None."""
    entered = _frames.get()
    return entered[-1].lease if entered else None


def lease_of(task: Any) -> Lease | NullLease | None:
    """The innermost lease that was entered for *task*, or None."""
    return next((frame.lease for frame in reversed(_frames.get()) if frame.task is task), None)


def record_of(task: Any = None) -> str | None:
    """The idempotency key of *task*'s innermost run here, or of whichever task runs here; None where it has none."""
    for frame in reversed(_frames.get()):
        if frame.task is not None and task in (None, frame.task):
            return frame.record or None
    return None


def works_on(record: str) -> bool:
    """Whether the running code is itself a part of the work of the idempotency key *record*."""
    return any(frame.record == record for frame in _frames.get())


def held_here(key: str, place: object) -> Lease | None:
    """The live lease on *key* in the store at *place* that this very execution is under, or None."""
    for frame in reversed(_frames.get()):
        lease = frame.lease
        if isinstance(lease, Lease) and (lease.key, lease.place) == (key, place) and not lease.ended:
            return lease
    return None


@contextmanager
def entered(frame: Frame) -> Iterator[None]:
    """Be under a lease within the block."""
    before = _frames.get()
    _frames.set((*before, frame))
    try:
        yield
    finally:
        _frames.set(before)
