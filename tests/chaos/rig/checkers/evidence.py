"""
What a run left behind, in the shape in which the checkers ask about it.

Every checker is to be right under any load, so none asks which of two close moments
came first. What is certain is cause and effect: a question was noted before it was
asked, its answer after it was received. So the server answered somewhere between `Asked.at` and `Asked.answered`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig import history
from rig.checkers.ledger import Ledger, read_ledger
from rig.history import Record

MARGIN = 0.05
LEAST_MARGIN = 0.1
"""The part of a TTL that is never trusted, as the design has it; not taken from the code that is checked."""

CLOCK = "F10"
DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Asked:
    """One question about one key, and its answer. Moments are seconds on the history's clock."""

    question: str
    key: str
    owner: str
    at: float
    pid: int
    answered: float = math.inf
    """When the answer, or the error, was there; never for a process that was killed before."""
    answer: str = ""
    """The answer's name, `error`, or empty where none came."""
    ttl: float = 0.0
    token: int = 0
    """The token of a grant, or that of the question."""
    holder: str = ""
    reason: str = ""
    delivery: str = ""
    message: str = ""
    if_held: str = ""
    how: str = ""

    @property
    def keeps(self) -> bool:
        """Whether the answer lets the owner trust the key for another TTL."""
        return self.answer in ("granted", "kept", "reinstated")

    @property
    def may_keep(self) -> bool:
        """Whether the server may have let the owner have the key for another TTL, whatever the owner heard of it."""
        return self.question == "acquire" or (self.question == "renew" and self.answer != "gone")

    @property
    def trusted_until(self) -> float:
        """Until when the owner may trust this answer at most: counted from the question."""
        return self.at + max(self.ttl - max(MARGIN * self.ttl, LEAST_MARGIN), 0.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from just before it struck until it was healed; *ended* is infinite while it wasn't."""

    name: str
    began: float
    ended: float
    loses_data: bool
    target: str
    step: float

    @property
    def steps_the_server(self) -> bool:
        """Whether the lease server's own clock was moved."""
        return self.name == CLOCK and not self.target.startswith("worker")

    def touches(self, since: float, until: float) -> bool:
        """Whether it was there at any moment from *since* to *until*."""
        return self.began <= until and self.ended >= since


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run directory, read once."""

    records: Mapping[str, Sequence[Record]]
    """By what they are, each in order of its moment."""
    asked: Sequence[Asked]
    """Every item of every question, by the moment it was asked."""
    faults: Sequence[Fault]
    ledger: Ledger
    online: bool = False
    """The run goes on: what is missing may still come."""
    by_owner: Mapping[tuple[str, str], Sequence[Asked]] = field(default_factory=dict)
    """The questions of each (key, owner)."""
    by_key: Mapping[str, Sequence[Asked]] = field(default_factory=dict)
    """The questions about each key."""

    @property
    def healed(self) -> float:
        """When the last fault had ended for good; infinite while the round is under load."""
        said = max((record.at for record in self.of("healed")), default=math.inf)
        return max(said, self.calm_since(math.inf))

    def of(self, what: str) -> Sequence[Record]:
        """The records of one kind."""
        return self.records.get(what, ())

    def setting(self, name: str, default: Any) -> Any:
        """A fact of the run's first record."""
        runs = self.of("run")
        found = runs[0].get(name) if runs else None
        return default if found is None else found

    def data_lost(self, since: float, until: float) -> bool:
        """Whether the server may have lost data between the two moments."""
        return any(fault.loses_data and fault.touches(since, until) for fault in self.faults)

    def clock_stepped(self, since: float, until: float) -> bool:
        """Whether the server's clock was off, or moved, between the two moments."""
        return any(fault.steps_the_server and fault.touches(since, until) for fault in self.faults)

    def reliable(self, since: float, until: float) -> bool:
        """Whether the server kept its data and its clock between the two moments: what G1 rests on."""
        return not (self.data_lost(since, until) or self.clock_stepped(since, until))

    def quiet(self, since: float, until: float) -> bool:
        """Whether there was no fault of any kind between the two moments."""
        return not any(fault.touches(since, until) for fault in self.faults)

    def calm_since(self, moment: float) -> float:
        """The end of the last fault before *moment*; infinite while there is one."""
        return max((each.ended for each in self.faults if each.began <= moment), default=0.0)

    def steps_before(self, moment: float) -> float:
        """Seconds by which a key may outlive its time because the server's clock was moved before *moment*."""
        return sum(abs(each.step) for each in self.faults if each.steps_the_server and each.began <= moment)

    def patience(self, ttl: float) -> float:
        """The bound of I6 in seconds: the TTL, the lost delay, and 1 s."""
        return ttl + float(self.setting("lost_delay", 0.0)) + 1.0

    def grants(self) -> Iterator[Asked]:
        """Every grant, by the moment it was asked for."""
        return (each for each in self.asked if each.answer == "granted")


def gather(run_directory: str | Path, *, online: bool = False) -> Evidence:
    """
    Read a run directory.

    *online*: the run goes on. Then records younger than the beginning of this call are
    left out: their causes may stand in a file that was read before they were written.
    """
    started = history.now()
    records = history.read(run_directory)
    if online:
        records = [record for record in records if record.at <= started]
    return evidence_of(records, read_ledger(run_directory, records), online=online)


def evidence_of(records: Iterable[Record], ledger: Ledger, *, online: bool = False) -> Evidence:
    """Sort *records* into an `Evidence`."""
    by_kind: defaultdict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda each: each.at):
        by_kind[record.what].append(record)
    asked = sorted(_asked(by_kind.get("ask", ()), by_kind.get("answer", ())), key=lambda each: each.at)
    by_owner: defaultdict[tuple[str, str], list[Asked]] = defaultdict(list)
    by_key: defaultdict[str, list[Asked]] = defaultdict(list)
    for each in asked:
        by_owner[each.key, each.owner].append(each)
        by_key[each.key].append(each)
    return Evidence(dict(by_kind), asked, _faults(by_kind), ledger, online, dict(by_owner), dict(by_key))


def _asked(asks: Iterable[Record], answers: Iterable[Record]) -> Iterator[Asked]:
    by_call = {(answer.pid, answer["call"]): answer for answer in answers}
    for ask in asks:
        answer = by_call.get((ask.pid, ask["call"]))
        given = (answer.get("items") if answer else None) or []
        for number, item in enumerate(ask["items"]):
            yield _item(ask, item, answer, given[number] if number < len(given) else None)


def _item(
    ask: Record, item: Mapping[str, Any], answer: Record | None, given: Mapping[str, Any] | None
) -> Asked:
    told = given or {}
    return Asked(
        question=ask["question"],
        key=item.get("key") or "",
        owner=item.get("owner") or "",
        at=ask.at,
        pid=ask.pid,
        answered=answer.at if answer else math.inf,
        answer=told.get("answer") or ("error" if answer else ""),
        ttl=item.get("ttl") or 0.0,
        token=told.get("token") or item.get("token") or 0,
        holder=told.get("holder") or "",
        reason=told.get("reason") or "",
        **{name: item.get(name) or "" for name in ("delivery", "message", "if_held", "how")},
    )


def _faults(by_kind: Mapping[str, Sequence[Record]]) -> list[Fault]:
    """
    The faults, by their begin. What is known only afterwards may stand in the end's record.

    A process that harmed itself and was killed over it never noted the end: its last record is that.
    """
    waiting: defaultdict[str, list[Record]] = defaultdict(list)
    for record in by_kind.get("fault", ()):
        if record["phase"] == "end":
            waiting[str(record["id"])].append(record)
    last = _last_signs(by_kind)
    return [
        _fault(record, _end_of(record, waiting[str(record["id"])]), last.get(record.pid, math.inf))
        for record in by_kind.get("fault", ())
        if record["phase"] == "begin"
    ]


def _last_signs(by_kind: Mapping[str, Sequence[Record]]) -> dict[int, float]:
    """The moment of each worker process's last record."""
    last: dict[int, float] = {}
    for records in by_kind.values():
        for record in records:
            if record.role != DRIVER:
                last[record.pid] = max(last.get(record.pid, 0.0), record.at)
    return last


def _end_of(begin: Record, ends: Sequence[Record]) -> Record | None:
    """The first end after *begin*, in the same process: a fault that comes again has the same id."""
    return next((end for end in ends if end.pid == begin.pid and end.at >= begin.at), None)


def _fault(begin: Record, end: Record | None, never: float) -> Fault:
    facts = {**begin.facts, **(end.facts if end else {})}
    return Fault(
        name=begin["fault"],
        began=begin.at,
        ended=end.at if end else never,
        loses_data=bool(begin.get("loses_data") or facts.get("loses_data")),
        target=str(facts.get("target") or ""),
        step=_step(facts),
    )


def _step(facts: Mapping[str, Any]) -> float:
    """By how many seconds the clock was moved: a fact of its own, or what the detail begins with."""
    words = str(facts.get("step") or facts.get("detail") or "").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return 0.0
