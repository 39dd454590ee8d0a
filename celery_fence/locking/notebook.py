"""
What the heartbeat still has to write down: that the epilogues of ended deliveries are complete.

Written in batches, off the task's path, and again with patience while the store is
out of reach. A note that is never written costs little: a copy of that delivery, if one
comes, completes the epilogue a second time.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.events import worth_a_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_fence.locking.store import Note, Store

logger = logging.getLogger(__name__)

BATCH = 100
"""Notes written in one call to the store."""

PATIENCE = 600.0
"""Seconds for which a note that can't be written is kept."""

PACE = 2.0
"""Seconds between two tries while the store is out of reach."""

Entry = tuple["Store", "Note", float]


class Notebook:
    """
    Notes to be written by one thread, added to by many; the heartbeat holds its lock around all but `complain`.

    A note that is taken to be written stays in the book until it is settled, whatever becomes of who took it.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._taken: dict[int, Entry] = {}
        self._not_before = 0.0
        self._failures = 0

    def __len__(self) -> int:
        return len(self._entries) + len(self._taken)

    def add(self, store: Store, note: Note, now: float) -> None:
        """Have *note* written to *store*."""
        self._entries.append((store, note, now + PATIENCE))

    def take(self, now: float) -> list[Entry]:
        """What is to be written now; nothing while a store that was out of reach is left in peace."""
        if now < self._not_before:
            return []
        taken = self._entries
        self._taken.update((id(entry), entry) for entry in taken)
        self._entries = []
        return taken

    def settle(self, taken: list[Entry], failed: list[Entry], now: float) -> None:
        """Those *taken* are written, but for the *failed*: keep these until their time is over."""
        self._failures = self._failures + 1 if failed else 0
        if failed:
            self._not_before = now + PACE
        kept = [entry for entry in failed if entry[2] > now and id(entry) in self._taken]
        self._entries = kept + self._entries
        for entry in taken:
            self._taken.pop(id(entry), None)

    def take_back(self) -> None:
        """Have all written that are taken and aren't settled: twice at worst, which changes nothing."""
        self._entries = [*self._taken.values(), *self._entries]
        self._taken.clear()

    def complain(self, text: str) -> None:
        """Say *text*, aloud only now and then while the store stays out of reach."""
        logger.log(logging.WARNING if worth_a_line(self._failures + 1) else logging.DEBUG, text)


def write(entries: list[Entry], warn: Callable[[str], object]) -> list[Entry]:
    """Write the notes, one round trip for each hundred; returns those that must be tried again, and says why."""
    failed: list[Entry] = []
    for batch in _batches(entries):
        try:
            batch[0][0].note([note for _, note, _ in batch])
        except StoreUnavailable as error:
            warn(f"{len(batch)} epilogues couldn't be noted yet: {error}")
            failed += batch
    return failed


def _batches(entries: list[Entry]) -> Iterator[list[Entry]]:
    by_store: defaultdict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_store[id(entry[0])].append(entry)
    for same_store in by_store.values():
        for start in range(0, len(same_store), BATCH):
            yield same_store[start : start + BATCH]
