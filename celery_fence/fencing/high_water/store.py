"""Where high-water marks live."""

from __future__ import annotations

from typing import Protocol

from celery_fence.fencing.gate.mark import Mark

RETENTION = 7 * 86400.0
"""Seconds for which the mark of a scope is kept after its last use, unless told otherwise."""


class HighWaterStore(Protocol):
    """Where high-water marks live. Safe between threads, and between the processes that share it."""

    def raise_mark(self, scope: str, mark: Mark) -> Mark:
        """
        Raise the mark of *scope* to *mark* unless that is stale, and answer the mark that stands now.

        One atomic step, safe to repeat. Whatever the store raises means that the mark
        isn't known: treat what was to pass as refused.
        """
        ...
