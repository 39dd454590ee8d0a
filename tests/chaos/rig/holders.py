"""Who holds which lease now, as far as the histories tell: where to strike a process that holds one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rig.history import Reader, Record


@dataclass(slots=True)
class Holders:
    """
    The leases that were granted and neither released nor lost, by owner, with the process that holds each.

    Read from the histories as they grow, so it lags behind by what was written since `look`.
    """

    directory: Path
    digests: dict[str, str] = field(default_factory=dict)
    """The digests of the store's scripts, as the workers know them."""
    pauses: int = 0
    _owners: dict[str, int] = field(default_factory=dict)
    _asked: dict[str, Record] = field(default_factory=dict)
    _reader: Reader | None = None

    def look(self) -> None:
        """Read what was added to the histories."""
        self._reader = self._reader or Reader(self.directory)
        for record in self._reader.news():
            self._take(record)

    def pids(self) -> list[int]:
        """The processes that hold a lease, in a fixed order."""
        return sorted(set(self._owners.values()))

    def of(self, pid: int) -> list[str]:
        """The owners that process *pid* holds leases as."""
        return [owner for owner, holder in self._owners.items() if holder == pid]

    def forget(self, pid: int) -> None:
        """Process *pid* is gone."""
        for owner in self.of(pid):
            del self._owners[owner]

    def _take(self, record: Record) -> None:
        match record.what:
            case "scripts":
                self.digests = record["digests"]
            case "ask" if record["question"] in ("acquire", "release"):
                self._ask(record)
            case "answer":
                self._answer(record)
            case "lost":
                self._owners.pop(record["owner"], None)

    def _ask(self, record: Record) -> None:
        if record["question"] == "acquire":
            self._asked[record["call"]] = record
        else:
            self._owners.pop(record["items"][0]["owner"], None)

    def _answer(self, record: Record) -> None:
        asked = self._asked.pop(record["call"], None)
        if asked is not None and record.get("items", [{}])[0].get("answer") == "granted":
            self._owners[asked["items"][0]["owner"]] = record.pid
