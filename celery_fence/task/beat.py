"""
The slot of a periodic run: the time it was scheduled for, on a grid that every beat shares.

Beat tells a task nothing of its schedule. Two beats, by mistake or one after the other,
send two messages for one run, each at a time of its own; so the schedulers here stamp
each message with its slot, which both work out alike:

- crontab: the latest time that the crontab names. However late beat is, that time is the slot.
- interval: the time cut down to a multiple of the interval, counted from 1970-01-01 UTC.

    every 10 s                  slots of the grid
    beat A, since 12:00:03      12:00:03 -> 12:00:00    12:00:13 -> 12:00:10
    beat B, since 12:00:07      12:00:07 -> 12:00:00    12:00:17 -> 12:00:10

The slot is that of the moment at which beat found the entry due, before it sends: a
broker that is slow to take the message doesn't move it into the next slot. As beat waits
for at least an interval from one such moment to the next, no two runs of one beat share
a slot. ``idempotency_key="report:<slot>"`` then lets one run of each slot do its work.
"""

from __future__ import annotations

import copy
import itertools
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import crontab, schedule

from celery_fence.task.slot import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

DAYS: Final = 366 * 40
"""How far back a crontab is searched: 29 February on a given weekday comes at least once in 40 years."""


class SlotStamps(Scheduler):
    """
    Stamps the slot into each message that a beat scheduler sends; to be put in front of yours.

    ```python
    class MyScheduler(SlotStamps, DatabaseScheduler): ...
    ```

    An entry whose schedule is neither a crontab nor an interval is sent without a slot.
    """

    def reserve(self, entry: Any) -> Any:
        """As the scheduler's; notes when the entry was found due."""
        self._due_at()[entry.name] = datetime.now(UTC)
        return super().reserve(entry)

    def apply_async(
        self,
        entry: Any,
        producer: Any = None,
        advance: bool = True,  # noqa: FBT001, FBT002 - Celery's
        **options: Any,
    ) -> Any:
        """As the scheduler's, with the header."""
        if advance:
            entry = self.reserve(entry)
        due = self._due_at().get(entry.name) or datetime.now(UTC)
        return super().apply_async(stamped(entry, due), producer=producer, advance=False, **options)

    def _due_at(self) -> dict[str, datetime]:
        noted: dict[str, datetime] = self.__dict__.setdefault("_fence_due_at", {})
        return noted


class SlotScheduler(SlotStamps, PersistentScheduler):
    """Celery's own scheduler, with slots: ``beat_scheduler = "celery_fence.task.beat:SlotScheduler"``."""


def stamped(entry: Any, due: datetime) -> Any:
    """A copy of *entry* whose message carries the slot of *due*; *entry* itself where it has none."""
    slot = slot_of(entry.schedule, due)
    if slot is None:
        return entry
    copied = copy.copy(entry)
    options = dict(entry.options or {})
    copied.options = {**options, "headers": {**(options.get("headers") or {}), HEADER: slot}}
    return copied


def slot_of(when: Any, now: datetime) -> str | None:
    """The slot that *now*, an aware time, lies in by the schedule *when*; None for a schedule without a grid."""
    if isinstance(when, crontab):
        moment = _latest_of_crontab(when, now)
    elif isinstance(when, schedule):
        moment = _start_of_interval(when.run_every, now)
    else:
        moment = None
    return None if moment is None else _written(moment)


def _start_of_interval(every: timedelta, now: datetime) -> datetime | None:
    step = every // MICROSECOND
    return now - ((now - EPOCH) // MICROSECOND % step) * MICROSECOND if step > 0 else None


def _latest_of_crontab(when: Any, now: datetime) -> datetime | None:
    today = now.astimezone(when.tz).date()
    for days in range(DAYS):
        day = today - timedelta(days=days)
        latest = max((each for each in _times_on(day, when) if each <= now), default=None)
        if latest is not None:
            return latest
    return None


def _times_on(day: date, when: Any) -> Iterator[datetime]:
    """The times of one day; an hour that the clocks run through twice has its times twice."""
    if not (
        day.month in when.month_of_year
        and day.day in when.day_of_month
        and day.isoweekday() % 7 in when.day_of_week
    ):
        return
    for hour, minute, fold in itertools.product(when.hour, when.minute, (0, 1)):
        yield datetime.combine(day, time(hour, minute, fold=fold), when.tz).astimezone(UTC)


def _written(moment: datetime) -> str:
    fraction = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%S}{fraction}Z"
