"""High-water marks in this process."""

from __future__ import annotations

import threading

from celery_fence.fencing.gate.mark import Mark
from celery_fence.fencing.high_water.store import RETENTION
from celery_fence.locking.clock import Clock, steady_clock


class MemoryMarks:
    """
    Marks that live and die with this process, each for *retention* seconds after its last use.

    Enough for a single consumer process; two processes don't see each other's marks.
    """

    def __init__(self, *, retention: float = RETENTION, clock: Clock | None = None) -> None:
        self._retention = retention
        self._clock = clock or steady_clock()
        self._marks: dict[str, tuple[Mark, float]] = {}
        """In the order of their last use, so that the first are the first to be dropped."""
        self._lock = threading.Lock()

    def raise_mark(self, scope: str, mark: Mark) -> Mark:
        """As `HighWaterStore.raise_mark`."""
        with self._lock:
            now = self._clock()
            self._drop_unused_since(now - self._retention)
            seen, _ = self._marks.pop(scope, (None, now))
            standing = mark if seen is None else seen.raised_to(mark)
            self._marks[scope] = (standing, now)
            return standing

    def __len__(self) -> int:
        """How many marks are kept."""
        return len(self._marks)

    def _drop_unused_since(self, oldest: float) -> None:
        while self._marks:
            scope, (_, used) = next(iter(self._marks.items()))
            if used > oldest:
                return
            del self._marks[scope]
