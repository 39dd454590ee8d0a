"""
Messages that the broker's transport has lost, and nobody else.

Kombu's Redis transport takes a message off its queue first and notes it as unacknowledged afterwards. A worker that
is killed in between takes it along, with or without celery-fence. It takes one message at a time, so it takes
along one at most.

So a delivery counts as lost by the broker only if it was put into a queue (published, which gives it a new delivery
tag, or put back under the same one) and no worker noted it as unacknowledged since, and if there is a killed worker of
that broker for it, and for it alone, that may just have been taking it. Any other delivery that is missing is a loss of
ours.

To be asked of empty queues only: before, what is missing may still wait in one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rig.history import Record

SEEN = ("worker", "published", "sent", "taken", "restored", "fault")
"""The kinds of records that tell of it."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker with all its processes was killed between the two moments; *broker* is where its messages came from."""

    began: float
    ended: float
    broker: str


@dataclass(frozen=True, slots=True)
class Losses:
    """Task ids, one for each delivery that is missing: *explained* by the kill of a worker, or not."""

    explained: Sequence[str]
    unexplained: Sequence[str]


@dataclass(slots=True)
class Journey:
    """When one message was put into the queue and taken, by delivery tag where that is known."""

    broker: str = ""
    published: list[float] = field(default_factory=list)
    """When each publishing began."""
    restored: dict[str, float] = field(default_factory=dict)
    """When it began to be put back, the last time."""
    first: dict[str, float] = field(default_factory=dict)
    """By when it had been taken for the first time."""
    last: dict[str, float] = field(default_factory=dict)
    """When it was last noted as unacknowledged."""

    def note_taken(self, tag: str, at: float) -> None:
        """It was noted as unacknowledged."""
        self.first[tag] = min(at, self.first.get(tag, at))
        self.last[tag] = max(at, self.last.get(tag, at))

    def note_restored(self, tag: str, began: float) -> None:
        """It was put back; so it had been taken, even if who took it was killed before it could say so."""
        self.first[tag] = min(began, self.first.get(tag, began))
        self.restored[tag] = max(began, self.restored.get(tag, began))

    def missing(self, kills: Sequence[Kill]) -> Iterator[set[int]]:
        """For each delivery that is missing, which of *kills* may have struck whoever was taking it."""
        near = {number: kill for number, kill in enumerate(kills) if kill.broker == self.broker}
        for _ in range(len(self.published) - len(self.first)):
            yield {number for number, kill in near.items() if self._lay_there(kill)}
        for tag, began in self.restored.items():
            if self.last.get(tag, 0.0) < began:
                yield {number for number, kill in near.items() if kill.ended >= began}

    def _lay_there(self, kill: Kill) -> bool:
        """Whether more had been published when *kill* struck than was known to be taken."""
        published = sum(at <= kill.ended for at in self.published)
        return published > sum(at < kill.began for at in self.first.values())


class Transit:
    """The journeys of all messages, from the records of a run."""

    def __init__(self) -> None:
        self._journeys: defaultdict[str, Journey] = defaultdict(Journey)
        self._brokers: dict[str, str] = {}
        self._begun: dict[str, float] = {}
        self._kills: list[Kill] = []

    def read(self, records: Iterable[Record]) -> None:
        """Take in some more records."""
        for record in records:
            match record.what:
                case "worker":
                    self._brokers[record["name"]] = record.get("broker", "")
                case "published" | "sent" | "taken" | "restored":
                    self._go_on(record)
                case "fault" if record["fault"] == "F1" and str(record["detail"]).startswith("worker "):
                    self._note_kill(record)

    def losses(self) -> Losses:
        """Every delivery that is missing."""
        missing = [
            (task_id, kills)
            for task_id, journey in self._journeys.items()
            for kills in journey.missing(self._kills)
        ]
        explained = _matched([kills for _, kills in missing])
        told: tuple[list[str], list[str]] = [], []
        for number, (task_id, _) in enumerate(missing):
            told[number not in explained].append(task_id)
        return Losses(*told)

    def _go_on(self, record: Record) -> None:
        journey = self._journeys[record["task_id"]]
        match record.what:
            case "published":
                journey.broker = record.get("broker", "")
                journey.published += [record.at] * record["copies"]
            case "sent":
                journey.published.append(record["began"])
            case "taken":
                journey.note_taken(record["tag"], record.at)
            case "restored":
                journey.note_restored(record["tag"], record["began"])

    def _note_kill(self, record: Record) -> None:
        if record["phase"] == "begin":
            self._begun[str(record["id"])] = record.at
        elif (began := self._begun.pop(str(record["id"]), None)) is not None:
            name = str(record["detail"]).removeprefix("worker ")
            self._kills.append(Kill(began, record.at, self._brokers.get(name, "")))


def _matched(choices: Sequence[set[int]]) -> set[int]:
    """As many of *choices* as can have one of theirs each, none of them twice: the numbers of these choices."""
    owners: dict[int, int] = {}

    def give(number: int, refused: set[int]) -> bool:
        for choice in choices[number] - refused:
            refused.add(choice)
            if choice not in owners or give(owners[choice], refused):
                owners[choice] = number
                return True
        return False

    for number in range(len(choices)):
        give(number, set())
    return set(owners.values())
