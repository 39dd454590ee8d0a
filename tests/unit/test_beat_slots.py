"""The slot of a periodic run: the same for every beat, another for every run of one beat."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_fence import ConfigError
from celery_fence.errors import LockKeyError
from celery_fence.locking.keys import key_rule
from celery_fence.task.beat import SlotScheduler, SlotStamps, slot_of
from celery_fence.task.slot import HEADER, slot_in

BERLIN = "Europe/Berlin"
moments = st.floats(1.7e9, 2e9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
intervals = st.integers(1, 10**7).map(lambda number: timedelta(milliseconds=number))


class Clock:
    """Beat's clock, which both of Celery's questions are asked of."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def app_in(timezone):
    app = Celery("beat", set_as_current=False, broker="memory://")
    app.conf.timezone = timezone
    return app


def in_berlin(**fields):
    return crontab(**fields, app=app_in(BERLIN))


@pytest.mark.parametrize(
    ("every", "now", "slot"),
    [
        (10, "2026-11-29T12:00:03", "20261129T120000Z"),
        (10, "2026-11-29T12:00:09.999999", "20261129T120000Z"),
        (10, "2026-11-29T12:00:10", "20261129T120010Z"),
        (0.5, "2026-11-29T12:00:10.7", "20261129T120010.5Z"),
        (86400, "2026-11-29T12:00:10", "20261129T000000Z"),
    ],
)
def test_an_interval_s_slot_is_the_time_cut_down_to_the_grid(every, now, slot):
    assert slot_of(schedule(every), at(now)) == slot


@given(moments, intervals, st.lists(st.floats(0, 2), min_size=1, max_size=20))
def test_no_two_runs_of_one_beat_share_an_interval_s_slot(start, every, delays):
    """However late beat finds the entry due, it waits for the interval before the next time."""
    when, now, slots = schedule(every), start, []
    for delay in delays:
        slots.append(slot_of(when, now))
        now += every + timedelta(seconds=delay)

    assert len(set(slots)) == len(slots)


@given(moments, intervals, st.floats(0, 0.999), st.floats(0, 0.999))
def test_two_beats_have_the_same_slots_whatever_their_phase(start, every, first, second):
    when = schedule(every)
    grid = start - (start - datetime(1970, 1, 1, tzinfo=UTC)) % every

    assert slot_of(when, grid + every * first) == slot_of(when, grid + every * second)


@pytest.mark.parametrize(
    ("fields", "now", "slot"),
    [
        ({"minute": "30", "hour": "2"}, "2026-11-29T01:30:00", "20261129T013000Z"),
        ({"minute": "30", "hour": "2"}, "2026-11-29T01:29:59", "20261128T013000Z"),
        ({"minute": "30", "hour": "2"}, "2026-11-29T23:59:59", "20261129T013000Z"),
        ({"minute": "30", "hour": "2"}, "2026-10-25T01:29:59", "20261025T003000Z"),
        ({"minute": "30", "hour": "2"}, "2026-10-25T01:30:00", "20261025T013000Z"),
        ({"minute": "*/15"}, "2026-11-29T12:14:59.9", "20261129T120000Z"),
        ({"minute": "0", "hour": "0", "day_of_month": "29"}, "2026-03-01T00:00:00", "20260128T230000Z"),
        ({"minute": "0", "hour": "9", "day_of_week": "mon"}, "2026-11-29T12:00:00", "20261123T080000Z"),
        ({"minute": "0", "hour": "9", "day_of_week": "sun"}, "2026-11-29T12:00:00", "20261129T080000Z"),
    ],
)  # fmt: skip
def test_a_crontab_s_slot_is_the_latest_time_it_names(fields, now, slot):
    assert slot_of(in_berlin(**fields), at(now)) == slot


def runs_of(when, start, end, *, lag):
    """The times at which Celery finds the crontab *when* due, by its own rules, *lag* seconds late."""
    clock = Clock(start)

    def now():
        """As the app's, in the app's time zone: Celery before 5.7 reads the hour off it as it is."""
        return clock.now.astimezone(when.tz)

    when.nowfun = now
    last = now()
    while clock.now < end:
        _due, wait = when.is_due(last)
        clock.now += timedelta(seconds=max(wait, 0) + lag)
        if when.is_due(last).is_due:
            last = now()
            yield clock.now


@pytest.mark.parametrize(
    "fields", [{"minute": "*/20"}, {"minute": "30", "hour": "2"}, {"minute": "30", "hour": "1-3"}]
)
@pytest.mark.parametrize("day", ["2026-03-28", "2026-10-24", "2026-06-01"])
def test_no_two_runs_of_one_beat_share_a_crontab_s_slot_where_the_clocks_change(fields, day):
    when = in_berlin(**fields)
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(BERLIN)).astimezone(UTC)

    runs = list(runs_of(when, start, start + timedelta(days=3), lag=0.3))
    slots = [slot_of(when, run) for run in runs]

    assert len(runs) > 2
    assert len(set(slots)) == len(slots)


def test_another_kind_of_schedule_has_no_slot():
    assert slot_of(object(), at("2026-11-29T12:00:00")) is None


class Sent(Scheduler):
    """A scheduler that sends nothing, and notes what it would have."""

    def setup_schedule(self):
        self.sent = []

    def send_task(self, name, *_args, headers=None, **options):
        self.sent.append((name, dict(headers or {}), options))


class SentWithSlots(SlotStamps, Sent):
    """The mixin in front of somebody's own scheduler."""


@pytest.fixture
def scheduler():
    return SentWithSlots(app_in("UTC"), lazy=False)


def entry_of(scheduler, every=60, **options):
    entry = ScheduleEntry(
        name="report", task="app.report", schedule=schedule(every), options=options, app=scheduler.app
    )
    scheduler.schedule["report"] = entry
    return entry


@pytest.mark.parametrize("advance", [True, False])
def test_the_slot_is_stamped_and_the_entry_keeps_its_own_options(scheduler, advance):
    entry = entry_of(scheduler, headers={"mine": 1}, queue="reports")
    if not advance:
        scheduler.reserve(entry)
    before = datetime.now(UTC)

    scheduler.apply_async(entry, advance=advance)

    [(name, headers, options)] = scheduler.sent
    assert name == "app.report"
    assert headers["mine"] == 1
    assert headers[HEADER] in {slot_of(entry.schedule, before), slot_of(entry.schedule, datetime.now(UTC))}
    assert options["queue"] == "reports"
    assert HEADER not in scheduler.schedule["report"].options["headers"]
    assert scheduler.schedule["report"].total_run_count == 1


def test_a_slow_broker_doesn_t_move_the_message_into_the_next_slot(scheduler):
    entry = entry_of(scheduler, every=0.001)
    scheduler.reserve(entry)
    due = scheduler._due_at()["report"]
    while datetime.now(UTC) - due < timedelta(milliseconds=20):
        pass

    scheduler.apply_async(entry, advance=False)

    assert scheduler.sent[0][1][HEADER] == slot_of(entry.schedule, due)


def test_an_entry_without_a_grid_is_sent_without_a_slot(scheduler):
    entry = entry_of(scheduler)
    entry.schedule = type("Odd", (), {"now": lambda _: datetime.now(UTC)})()

    scheduler.apply_async(entry, advance=False)

    assert HEADER not in scheduler.sent[0][1]


def test_celery_s_own_scheduler_with_slots_is_a_persistent_one():
    assert SlotScheduler.__mro__[1].__name__ == "SlotStamps"
    assert hasattr(SlotScheduler, "persistence")


def report(tenant_id=7):
    """The function of a task."""


def rule(template, function=report, *, slots=True):
    return key_rule(template, signature=inspect.signature(function), task="app.report", slots=slots)


def test_the_slot_is_part_of_the_key():
    made = rule("report:<tenant_id>:<slot>")

    assert made.render((), {}, slot="20261129T120000Z") == "report:7:20261129T120000Z"


def test_a_message_without_a_slot_is_told_how_to_get_one():
    with pytest.raises(
        LockKeyError, match=r"beat_scheduler='celery_fence.task.beat:SlotScheduler'.*<slot\?>"
    ):
        rule("report:<slot>").render((), {})


def test_a_slot_with_a_question_mark_may_be_missing():
    made = rule("report:<slot?>")

    assert made.render((), {}) == "report:~"
    assert made.render((), {}, slot="20261129T120000Z") == "report:20261129T120000Z"


def test_a_slot_in_a_lock_key_is_an_error_that_says_where_it_belongs():
    with pytest.raises(ConfigError, match="belongs into idempotency_key"):
        rule("report:<slot>", slots=False)


def test_a_parameter_of_that_name_goes_before():
    def book(slot):
        """A function whose own slot is meant."""

    for slots in (True, False):
        assert (
            rule("booking:<slot>", book, slots=slots).render(("9 am",), {}, slot="20261129T120000Z")
            == "booking:9%20am"
        )


def test_a_parameter_of_that_name_which_is_none_is_not_taken_for_a_missing_stamp():
    def book(slot):
        """A function whose own slot is meant."""

    with pytest.raises(LockKeyError, match=r"<slot> is None; write <slot\?>"):
        rule("booking:<slot>", book).render((None,), {}, slot="20261129T120000Z")


@pytest.mark.parametrize("headers", [None, {}, {HEADER: 7}, {HEADER: ""}, "text"])
def test_a_mangled_header_is_no_slot(headers):
    assert slot_in(type("Request", (), {"headers": headers})()) is None
