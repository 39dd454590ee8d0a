"""
The renewers of a heartbeat, one for each store that it had work for, and what each does for it.

While a store doesn't answer, only its own renewer waits. What the answers come to is written into
the heartbeat's agenda.
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_fence.locking.beat import Beat
from celery_fence.locking.duty import STUMBLE
from celery_fence.locking.notebook import Entry, counted, write
from celery_fence.locking.renewer import Renewer

if TYPE_CHECKING:
    from celery_fence.locking.agenda import Agenda
    from celery_fence.locking.clock import Clock
    from celery_fence.locking.lease import Lease
    from celery_fence.locking.schedule import Emit, Watched
    from celery_fence.locking.store import Store

logger = logging.getLogger(__name__)

GIVEN_UP = (
    "%s couldn't be noted as complete for ten minutes, which is given up: copies of those messages, if any come, do "
    "what follows a run once more"
)


class Renewers:
    """
    Hands what is due to the renewer of its store, and keeps *agenda* by what becomes of it.

    *part* is called with a lease that has ended, and whom to tell of it; *look* in each turn of a renewer;
    *complain* with a message and the exception that struck; *tell* with what may run other people's code.
    """

    def __init__(
        self,
        agenda: Agenda,
        clock: Clock,
        *,
        part: Callable[[Lease, Emit], object],
        look: Callable[[], object],
        complain: Callable[[str, BaseException], object],
        tell: Callable[[Callable[[], object]], object],
    ) -> None:
        self._agenda = agenda
        self._clock = clock
        self._part = part
        self._look = look
        self._complain = complain
        self._tell = tell
        self._by_store: dict[int, Renewer] = {}

    def renew(self, due: list[Watched]) -> None:
        """Have the leases *due* renewed. RuntimeError where the machine has no thread to spare."""
        by_store: defaultdict[int, list[Watched]] = defaultdict(list)
        for lease, emit in due:
            by_store[id(lease.renewals)].append((lease, emit))
        for pairs in by_store.values():
            self.of(pairs[0][0].renewals).renew(pairs)

    def write(self, entries: list[Entry]) -> None:
        """Have *entries* written; where the machine has no thread to spare, they are due again later."""
        by_store: defaultdict[int, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_store[id(entry[0])].append(entry)
        for notes in by_store.values():
            try:
                self.of(notes[0][0]).write(notes)
            except RuntimeError as error:
                self._complain("Noting that runs are complete has to wait", error)
                self._settle(notes, failed=notes)

    def mend(self) -> None:
        """Put other threads in the place of those that fell. RuntimeError as above."""
        for renewer in list(self._by_store.values()):
            renewer.mend()

    def end(self) -> bool:
        """Let them end; True while one of them has still something to do."""
        renewers = list(self._by_store.values())
        for renewer in renewers:
            renewer.end()
        return any(renewer.running for renewer in renewers)

    def of(self, store: Store) -> Renewer:
        """The renewer of *store*, a new one where there was no work for it before."""
        # It knows its store, which can't be taken for a later one that has its number.
        found = self._by_store.get(id(store))
        return found or self._by_store.setdefault(id(store), self._new(store))

    def _new(self, store: Store) -> Renewer:
        beat = Beat(store, self._clock, again=self._agenda.again, part=self._part, complain=self._complain)
        return Renewer(
            functools.partial(self._renew, beat.renew),
            self._write,
            functools.partial(self._close, store),
            self._look,
            functools.partial(self._complain, "A renewer stumbled and goes on"),
        )

    # --- in a renewer's thread -----------------------------------------------------------

    def _renew(self, renew: Callable[[list[Watched]], object], due: list[Watched]) -> None:
        try:
            renew(due)
        except BaseException as error:  # noqa: BLE001 - those that were told aren't to be asked for again
            self._agenda.take_back(STUMBLE)
            self._complain("The heartbeat stumbled and goes on", error)

    def _write(self, entries: list[Entry]) -> None:
        failed = entries
        try:
            failed = write(entries, self._warn)
        except BaseException as error:  # noqa: BLE001 - a note is no reason to ask for leases again
            self._complain("Noting that runs are complete broke", error)
        finally:
            self._settle(entries, failed=failed)

    def _warn(self, text: str) -> None:
        self._tell(self._agenda.notebook.complaint(text))

    def _settle(self, entries: list[Entry], *, failed: list[Entry]) -> None:
        given_up = self._agenda.settle(entries, failed)
        if given_up:
            self._tell(functools.partial(logger.warning, GIVEN_UP, counted(given_up)))

    def _close(self, store: Store) -> None:
        try:
            store.close()
        except Exception as error:  # noqa: BLE001 - a connection that nobody needs any more
            self._complain("A connection couldn't be closed", error)
