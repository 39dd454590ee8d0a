"""
What the heartbeat still has to write down: that the epilogues of ended deliveries are complete, and what runs owe.

Written in batches, off the task's path, and again with patience while the store is
out of reach. A note that is never written costs little: a copy of that delivery, if one
comes, completes the epilogue a second time. What is owed (`celery_fence.locking.owed`) goes
first, and says itself for how long.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.events import worth_a_line
from celery_fence.locking.owed import Owed
from celery_fence.locking.store import Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_fence.locking.store import Store

logger = logging.getLogger(__name__)

BATCH = 100
"""Notes written in one call to the store."""

PATIENCE = 600.0
"""Seconds for which a note that can't be written is kept."""

PACE = 0.5
"""Seconds between two tries while the store is out of reach; for notes alone the heartbeat looks once a second."""

BUDGET = 1.0
"""Seconds after which a store that has failed is left in peace, whatever else there is: its renewals wait meanwhile."""

Due = Note | Owed

Entry = tuple["Store", Due, float]


class Notebook:
    """
    Notes to be written by one thread, added to by many; the heartbeat holds its lock around all but `complaint`.

    A note that is taken to be written stays in the book until it is settled, whatever becomes of who took it.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._taken: dict[int, Entry] = {}
        self._not_before = 0.0
        self._failures = 0
        self.owes = False
        """Whether anything may be owed: else nobody has to look."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._taken)

    def add(self, store: Store, due: Due, now: float) -> None:
        """Have *due* written to *store*, or paid to it."""
        self.owes = self.owes or isinstance(due, Owed)
        self._entries.append((store, due, math.inf if isinstance(due, Owed) else now + PATIENCE))

    @property
    def owed(self) -> list[Owed]:
        """What isn't paid yet, also while somebody tries to."""
        kept = (due for _, due, _ in [*self._taken.values(), *self._entries])
        return [due for due in kept if isinstance(due, Owed) and not due.settled]

    def next_at(self, latest: float) -> float:
        """When to look again for what is owed, *latest* if nothing is: notes have time till then."""
        waits = self.owes and any(isinstance(due, Owed) for _, due, _ in self._entries)
        return min(self._not_before, latest) if waits else latest

    def take(self, now: float) -> list[Entry]:
        """What is to be written now; nothing while a store that was out of reach is left in peace."""
        if now < self._not_before:
            return []
        taken = self._entries
        self._taken.update((id(entry), entry) for entry in taken)
        self._entries = []
        return taken

    def settle(self, taken: list[Entry], failed: list[Entry], now: float) -> int:
        """
        Those *taken* are written, but for the *failed*: keep these until their time is over.

        Returns how many are given up.
        """
        self._failures = self._failures + 1 if failed else 0
        if failed:
            self._not_before = now + PACE
        left = [entry for entry in failed if id(entry) in self._taken]
        kept = [entry for entry in left if entry[2] > now]
        self._entries = kept + self._entries
        for entry in taken:
            self._taken.pop(id(entry), None)
        self.owes = self.owes and bool(self.owed)
        return len(left) - len(kept)

    def take_back(self) -> None:
        """Have all written that are taken and aren't settled: twice at worst, which changes nothing."""
        self._entries = [*self._taken.values(), *self._entries]
        self._taken.clear()

    def complaint(self, text: str) -> Callable[[], object]:
        """What says *text* of the try that is made now: aloud only now and then while the store stays out of reach."""
        level = logging.WARNING if worth_a_line(self._failures + 1) else logging.DEBUG
        return functools.partial(logger.log, level, text)


def write(entries: list[Entry], warn: Callable[[str], object]) -> list[Entry]:
    """
    Pay what is owed, and write the notes, one round trip for each hundred.

    Returns those that must be tried again, the untried ones first, and says why. A store that
    hangs is tried once: its other duties wait for the next time, as the renewals would for them.
    """
    failed: list[Entry] = []
    began = time.monotonic()
    jobs = list(_jobs(entries))
    while jobs and not (failed and time.monotonic() - began > BUDGET):
        job = jobs.pop(0)
        try:
            _do(job)
        except StoreUnavailable as error:
            warn(f"{_told(job)} yet: {error}")
            failed += job
    return [entry for job in jobs for entry in job] + failed


def _do(job: list[Entry]) -> None:
    store, first, _ = job[0]
    if isinstance(first, Owed):
        _pay(first, store)
    else:
        store.note([due for _, due, _ in job if isinstance(due, Note)])


def _pay(owed: Owed, store: Store) -> None:
    try:
        owed.pay(store)
    except StoreUnavailable:
        raise
    except Exception as error:
        owed.broke(error)
        if not owed.settled:
            raise StoreUnavailable(f"The call broke: {error!r}") from error


def _told(job: list[Entry]) -> str:
    first = job[0][1]
    if isinstance(first, Owed):
        return f"The end of a run on {first.key!r} couldn't be made up for"
    return f"{counted(len(job))} couldn't be noted as complete"


def counted(runs: int) -> str:
    """That many *runs*, for people."""
    return "1 run" if runs == 1 else f"{runs} runs"


def _jobs(entries: list[Entry]) -> Iterator[list[Entry]]:
    """What goes in one call each."""
    yield from ([entry] for entry in entries if isinstance(entry[1], Owed))
    by_store: defaultdict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry[1], Note):
            by_store[id(entry[0])].append(entry)
    for same_store in by_store.values():
        for start in range(0, len(same_store), BATCH):
            yield same_store[start : start + BATCH]
