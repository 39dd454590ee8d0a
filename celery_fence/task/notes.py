"""
What a message carries for celery-fence from one try to the next.

One header, ``fence``, holds the delivery id and the counts. The counts belong to
ONE wait: they are cleared once the lease is taken, so that a task's own
``self.retry()`` doesn't carry them on. A missing or mangled header counts as
nothing, never as an error: messages come from other languages and older versions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from celery._state import get_current_task

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = "fence"
RUN = "fence_run"
"""Put into the request by the worker's main process for the pool process; never part of a message."""

MOST = 10**12
"""Above every count and every epoch time, in seconds, that a header can honestly hold."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Count:
    """
    How often and since when a message has been refused, by the wall clock in epoch seconds.

    *stage* and *attempt* are the place in the chain of policies; *total* counts
    over all stages, *first* and *last* are the times of the first and last refusal.
    """

    stage: int = 0
    attempt: int = 0
    stage_first: float = 0.0
    total: int = 0
    first: float = 0.0
    last: float = 0.0

    def waited(self, now: float) -> float:
        """Seconds since the first refusal, 0 before there was one."""
        return max(now - self.first, 0.0) if self.total else 0.0

    def waited_in_stage(self, now: float) -> float:
        """Seconds since the first refusal of this stage."""
        return max(now - self.stage_first, 0.0) if self.attempt else 0.0

    def since_last(self, now: float) -> float | None:
        """Seconds since the last refusal, None before there was one."""
        return max(now - self.last, 0.0) if self.total else None

    def another(self, stage: int, attempt: int, now: float) -> Count:
        """The count after one more refusal that was decided in *stage* as its *attempt*-th."""
        same_stage = self.attempt and stage == self.stage
        return Count(
            stage=stage,
            attempt=attempt,
            stage_first=self.stage_first if same_stage else now,
            total=self.total + 1,
            first=self.first if self.total else now,
            last=now,
        )


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message was sent: the queue's name where it is known, for sending it there again."""

    exchange: str = ""
    routing_key: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Notes:
    """The ``fence`` header of one message."""

    delivery: str = ""
    misses: Count = field(default_factory=Count)
    outages: Count = field(default_factory=Count)
    put_offs: int = 0
    doubts: int = 0
    losses: int = 0
    route: Route | None = None

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None) -> Notes:
        """The notes in a message's headers; empty ones where there are none."""
        raw = (headers or {}).get(HEADER)
        if not isinstance(raw, Mapping):
            return cls()
        return cls(
            delivery=_plain(raw, "delivery", str, ""),
            misses=_record(Count, raw.get("misses")) or Count(),
            outages=_record(Count, raw.get("outages")) or Count(),
            put_offs=_plain(raw, "put_offs", int, 0),
            doubts=_plain(raw, "doubts", int, 0),
            losses=_plain(raw, "losses", int, 0),
            route=_record(Route, raw.get("route")),
        )

    def header(self) -> dict[str, Any]:
        """The notes as plain JSON types, without what is empty."""
        empty = Notes()
        return {
            name: asdict(value) if hasattr(value, "__dataclass_fields__") else value
            for name in (f.name for f in fields(self))
            if (value := getattr(self, name)) != getattr(empty, name)
        }

    def cleared(self) -> Notes:
        """The notes once the lease is taken: the counts of the wait are over."""
        return Notes(delivery=self.delivery, losses=self.losses)

    def lost_again(self) -> Notes:
        """After the lease of a run was lost."""
        return replace(self, losses=self.losses + 1)

    def put_off_again(self) -> Notes:
        """After a copy of a running message was put off."""
        return replace(self, put_offs=self.put_offs + 1)

    def doubted_again(self) -> Notes:
        """After a copy that could have run was put off, because its message has an outcome already."""
        return replace(self.put_off_again(), doubts=self.doubts + 1)

    def missed(self, stage: int, attempt: int, now: float, route: Route) -> Notes:
        """After a miss that was decided in *stage*."""
        return replace(self, misses=self.misses.another(stage, attempt, now), route=self.route or route)

    def outage(self, stage: int, attempt: int, now: float, route: Route) -> Notes:
        """After the store was out of reach."""
        return replace(self, outages=self.outages.another(stage, attempt, now), route=self.route or route)


def _plain(raw: Mapping[str, Any], name: str, kind: type[T], default: T) -> T:
    value = raw.get(name, default)
    return value if _fits(value, kind) else default


def _fits(value: object, kind: type) -> bool:
    """Whether *value* is a text, or a number that a count or an epoch time can be: never negative, endless or NaN."""
    if kind is str:
        return isinstance(value, str)
    number = isinstance(value, int | kind) and not isinstance(value, bool)
    return number and 0 <= value <= MOST  # type: ignore[operator]


def _record(kind: type[T], raw: object) -> T | None:
    """A dataclass of plain numbers and texts from a mapping; what doesn't fit is left at its default."""
    if not isinstance(raw, Mapping):
        return None
    known = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    kinds = {"int": int, "float": float, "str": str}
    return kind(**{k: v for k, v in raw.items() if k in known and _fits(v, kinds[known[k]])})


# --- the delivery id -------------------------------------------------------------------------

_keeping: ContextVar[bool] = ContextVar("celery_fence_keeps_delivery", default=False)


@contextmanager
def same_delivery() -> Iterator[None]:
    """What is published within the block is the same delivery as before: its id is kept."""
    before = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(before)


def stamp_delivery(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """
    Give a message that is about to be published a delivery id of its own.

    Connected to Celery's `before_task_publish` for each fenced task, so it covers
    every way of sending that knows the task: `delay`, canvas, `send_task`, beat.
    The same task id sent twice on purpose is two deliveries.
    """
    if headers is None or _keeping.get():
        return
    headers.pop(RUN, None)
    delivery = _new_delivery(str(headers.get("task")), headers.get("id"))
    headers[HEADER] = Notes(delivery=delivery).header()


def _new_delivery(name: str, task_id: str | None) -> str:
    """
    A fresh delivery id; the same again where an epilogue is completed a second time.

    What follows a run under a fixed task id (the next step of a chain) must be
    recognised as a copy then.
    """
    from celery_fence.task import endings
    from celery_fence.task.run import run_of

    task = get_current_task()
    run = run_of(task.request) if task is not None else None
    if run is None or not task_id or not run.in_epilogue:
        return uuid.uuid4().hex
    return endings.followers_delivery(run, name, task_id)


def wall_clock() -> float:
    """Now, in epoch seconds: for what travels between machines, never for trust."""
    return time.time()
