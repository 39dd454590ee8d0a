"""
How often each thing has happened in this process: events, counted.

Labels are the kind of event, the task and, for a guarded write, whether it was
refused; never the key.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from celery_fence.locking import events
from celery_fence.locking.native import new_lock


@dataclass(frozen=True, slots=True)
class Label:
    """What is counted together: a *kind* of event, for one *task* (empty: outside of one), with its *outcome*."""

    kind: str
    task: str
    outcome: str


class Tally:
    """Counts what it is told, for one app in one process; `counts` may be read at any time."""

    def __init__(self) -> None:
        self.counts: Counter[Label] = Counter()
        self._guard = new_lock()

    def __call__(self, event: events.Event) -> None:
        """Count a guarded write that was stale."""
        if isinstance(event, events.StaleWriteRefused):
            outcome = "refused" if event.refused else "let_pass"
            label = Label("stale_write", getattr(event.source, "name", None) or "", outcome)
            with self._guard:
                self.counts[label] += 1
