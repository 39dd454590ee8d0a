"""
Messages that the broker's transport has lost, and nobody else.

Kombu's Redis transport takes a message off its queue first and notes it as unacknowledged afterwards. A worker
that is killed in between takes it along, with or without celery-fence. Such a message is one
that was put into its queue more often than anybody has received it: published, which gives it a new delivery tag,
or put back, after a rejection or a visibility timeout, under the same one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from rig.history import Reader, Record


class Transit:
    """What was published and what was received, read from the histories of a run."""

    def __init__(self, directory: Path) -> None:
        self._reader = Reader(directory)
        self._sent: Counter[str] = Counter()
        self._tags: defaultdict[str, set[str]] = defaultdict(set)
        self._restored: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._killed = False

    def lost(self, task_ids: Iterable[str]) -> list[str]:
        """Those of *task_ids* that were put into the queue and never received, after some worker was killed."""
        for record in self._reader.news():
            self._take(record)
        return [each for each in task_ids if self._killed and self._is_short(each)]

    def _is_short(self, task_id: str) -> bool:
        put = self._sent[task_id] + self._restored[task_id]
        return len(self._tags[task_id]) < self._sent[task_id] or self._received[task_id] < put

    def _take(self, record: Record) -> None:
        match record.what:
            case "published":
                self._sent[record["task_id"]] += record["copies"]
            case "sent":
                self._sent[record["task_id"]] += 1
            case "received":
                self._tags[record["task_id"]].add(record["tag"])
                self._received[record["task_id"]] += 1
            case "restored":
                self._restored[record["task_id"]] += 1
            case "fault" if record["fault"] == "F1" and str(record["detail"]).startswith("worker"):
                self._killed = True
