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
    """A worker with all its processes was dead by *ended*; *broker* is where its messages came from."""

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

    def missing(self) -> Iterator[float]:
        """For each delivery that is missing, since when it may have been: who took it was killed later."""
        unknown = len(self.published) - len(self.first)
        if unknown > 0:
            # There is none only where a publishing wasn't noted, because its worker was killed just then.
            able = [at for at in self.published if self._may_be_missing(at)] or self.published
            yield from [min(able)] * unknown
        yield from (began for tag, began in self.restored.items() if self.last.get(tag, 0.0) < began)

    def _may_be_missing(self, at: float) -> bool:
        """Whether each one that was taken can be another one than that of *at*, and one that was published before."""
        others = list(self.published)
        others.remove(at)
        taken = enumerate(sorted(self.first.values()), start=1)
        return all(sum(each <= first for each in others) >= number for number, first in taken)


class Transit:
    """The journeys of all messages, from the records of a run."""

    def __init__(self) -> None:
        self._journeys: defaultdict[str, Journey] = defaultdict(Journey)
        self._brokers: dict[str, str] = {}
        self._kills: list[Kill] = []

    def read(self, records: Iterable[Record]) -> None:
        """Take in some more records."""
        for record in records:
            match record.what:
                case "worker":
                    self._brokers[record["name"]] = record.get("broker", "")
                case "published" | "sent" | "taken" | "restored":
                    self._go_on(record)
                case "fault" if record["fault"] == "F1" and record["phase"] == "end":
                    self._note_kill(str(record["detail"]), record.at)

    def losses(self) -> Losses:
        """Every delivery that is missing; each one that can be gets the first kill that nobody has yet."""
        told: tuple[list[str], list[str]] = [], []
        kills = sorted(self._kills, key=lambda kill: kill.ended)
        for task_id, journey in self._journeys.items():
            for since in journey.missing():
                near = (kill for kill in kills if kill.broker == journey.broker and kill.ended >= since)
                kill = next(near, None)
                told[kill is None].append(task_id)
                if kill is not None:
                    kills.remove(kill)
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

    def _note_kill(self, detail: str, at: float) -> None:
        kind, _, name = detail.partition(" ")
        if kind == "worker":
            self._kills.append(Kill(at, self._brokers.get(name, "")))
