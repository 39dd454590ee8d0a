"""Following a night through the journal of its ledger."""

from __future__ import annotations

import time
from typing import Self

from example_app.ledger import Ledger
from example_app.models import JournalEntry

FINISHED = frozenset({"charged", "already paid", "answered", "refused"})
OVER = frozenset({*FINISHED, "frozen", "killed"})
OVERLAP = 200
"""How many known lines are read again each time: on PostgreSQL, numbers may become visible out of order."""


class Watch:
    """What the journal says so far; `refresh` reads on."""

    def __init__(self, ledger: Ledger, *, expected: int) -> None:
        self.ledger = ledger
        self.expected = expected
        self.seconds = {bill.tenant_id: bill.seconds_to_charge for bill in ledger.invoices()}
        self._entries: dict[int, JournalEntry] = {}

    def refresh(self) -> Self:
        """Read what was written since."""
        last = max(self._entries, default=0)
        self._entries |= {entry.id: entry for entry in self.ledger.journal(after=last - OVERLAP)}
        return self

    @property
    def entries(self) -> list[JournalEntry]:
        """All lines, in order."""
        return [self._entries[number] for number in sorted(self._entries)]

    def count(self, what: str) -> int:
        """How many lines say *what*."""
        return sum(entry.what == what for entry in self._entries.values())

    def finished(self) -> set[str]:
        """The messages that have an outcome."""
        return {entry.task_id for entry in self._entries.values() if entry.what in FINISHED}

    @property
    def all_finished(self) -> bool:
        """Whether every message that was to be published has an outcome."""
        return len(self.finished()) >= self.expected

    def frozen(self) -> JournalEntry | None:
        """The line about the run that was frozen; None if nobody was."""
        return next((entry for entry in self.entries if entry.what == "frozen"), None)

    def charging(self) -> list[JournalEntry]:
        """Each unharmed tenant's first run, while the tenant is uncharged; the newest run comes last."""
        over = {entry.tenant_id for entry in self._entries.values() if entry.what in OVER}
        first = {entry.tenant_id: entry for entry in reversed(self.entries) if entry.what == "started"}
        running = [entry for entry in first.values() if entry.tenant_id not in over]
        return sorted(running, key=lambda entry: entry.id)

    def surely_waiting(self, run: JournalEntry) -> bool:
        """Whether *run* is still waiting for the payment provider, with half of its time to go."""
        return time.time() < run.at + self.seconds[run.tenant_id] / 2

    def written_since(self, line: int, tenant_id: int) -> bool:
        """Whether a charge of the tenant was written behind journal line *line*."""
        later = (entry for number, entry in self._entries.items() if number > line)
        return any(entry.what == "charged" and entry.tenant_id == tenant_id for entry in later)
