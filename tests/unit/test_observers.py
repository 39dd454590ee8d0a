"""What others see of each event: one log line with structured extras, and a Celery-style signal."""

from __future__ import annotations

import logging
import threading
from dataclasses import fields

import pytest
from celery.utils.dispatch import Signal

from celery_fence import signals
from celery_fence.locking import events
from celery_fence.locking.store import Claim, Facts, Holder
from celery_fence.observers.bounds import SPAN, Bounds
from celery_fence.observers.logs import LIMITS, NOW_AND_THEN, Log
from celery_fence.observers.signals import SIGNALS, send


class Sender:
    name = "app.sync"


TASK = Sender()
HOLDER = Holder("job:1", "their owner", 9, 3.0, facts=Facts("app.sync", "their id"))
EXTRAS = {"key", "token", "owner", "task_id", "task_name", "held_for", "waited_for"}


@pytest.fixture
def lease(make_lease, clock):
    lease = make_lease(key="job:1")
    lease.claim = Claim("job:1", "my owner", 30.0, Facts("app.sync", "my id"))
    clock.advance(4)
    return lease


@pytest.fixture
def every(lease):
    """One of each event, and the level of its log line."""
    return [
        (events.Acquired(TASK, "job:1", lease, 2.0), "DEBUG"),
        (events.Renewed(TASK, "job:1", lease, 0.01), "DEBUG"),
        (events.Renewed(TASK, "job:1", lease, 0.01, reinstated=True), "WARNING"),
        (events.ReleasedLease(TASK, "job:1", lease, "released", 4.0), "DEBUG"),
        (events.ReleasedLease(TASK, "job:1", lease, "gone", 4.0), "WARNING"),
        (events.ReleasedLease(TASK, "job:1", lease, "unreachable", 4.0), "WARNING"),
        (events.ReleasedLate(TASK, "job:1", lease, "released", 3.0), "INFO"),
        (events.ReleasedLate(TASK, "job:1", lease, "gone", 3.0), "INFO"),
        (events.Renewed(TASK, "job:1", lease, 0.01, failures=2), "INFO"),
        (events.RenewalFailed(TASK, "job:1", lease, OSError("no route"), 9.0), "WARNING"),
        (events.RenewalFailed(TASK, "job:1", lease, OSError("no route"), 9.0, attempt=3), "DEBUG"),
        (events.Lost(TASK, "job:1", lease, "taken"), "ERROR"),
        (events.Missed(TASK, "job:1", HOLDER, "my id", "retry", 1.5, 3, 7.0), "INFO"),
        (events.Missed(TASK, "job:1", None, "my id", "retry", 1.5, 3, 7.0, OSError("no route")), "WARNING"),
        (events.PutOff(TASK, "job:1", HOLDER, "my id", 2.0), "INFO"),
        (events.CopyEnded(TASK, "job:1", "my id", "failed", 30.0), "INFO"),
        (events.Skipped(TASK, "job:1", HOLDER, "my id", {"celery_fence": "skipped"}), "DEBUG"),
        (events.Skipped(TASK, "job:1", None, "my id", {"charged": 5}, "already_done"), "INFO"),
        (events.CounterRaised(TASK, "job:1", lease, "my id", 99, "job:1"), "ERROR"),
        (events.DeadLetteredMessage(TASK, "job:1", HOLDER, "my id", "dead", "max_wait", 4, 7.0), "ERROR"),
        (events.RanUnfenced(TASK, "job:1", "my id", OSError("no route")), "ERROR"),
        (
            events.StaleWriteRefused(TASK, "job:1", lease, "job:1", 1, "my owner", 2, "theirs", "UPDATE t"),
            "WARNING",
        ),
        (events.StillWaiting(TASK, "job:1", HOLDER, "my id", 7200.0), "WARNING"),
    ]


@pytest.fixture
def timers():
    """What is to be called later: seconds and function."""
    return []


@pytest.fixture
def log(clock, timers):
    return Log(clock, Bounds(clock, lambda *timer: timers.append(timer)))


def subclasses():
    return {
        each for each in vars(events).values() if isinstance(each, type) and issubclass(each, events.Event)
    }


@pytest.fixture
def records(caplog):
    """All records, as they come: caplog starts a new list for each phase of a test."""
    records = []
    caplog.handler.emit = records.append
    with caplog.at_level(logging.DEBUG, "celery_fence"):
        yield records
    del caplog.handler.emit


def test_no_event_is_left_out_of_these_tests(every):
    assert {type(event) for event, _ in every} == subclasses() - {events.Event}


def test_each_event_is_one_line_at_its_level_that_names_the_key(log, every, records):
    for event, level in every:
        records.clear()
        log(event)

        assert [(record.levelname, record.name) for record in records] == [(level, "celery_fence")]
        assert "'job:1'" in records[0].getMessage()


def test_a_miss_is_no_warning_and_has_no_traceback(log, every, records):
    for event, _ in every:
        if isinstance(event, events.Missed | events.Skipped | events.PutOff) and event.holder is HOLDER:
            log(event)

    assert records
    assert all(record.levelno < logging.WARNING and record.exc_info is None for record in records)


def test_every_line_has_all_the_extras(log, every, records):
    for event, _ in every:
        log(event)

    for record in records:
        assert vars(record).keys() >= EXTRAS
        assert (record.key, record.task_name, record.task_id) == ("job:1", "app.sync", "my id")


def test_the_extras_of_a_lease_are_its_own(log, lease, records):
    log(events.ReleasedLease(TASK, "job:1", lease, "released", 4.0))

    record = records[0]
    assert (record.token, record.owner, record.held_for, record.waited_for) == (1, "my owner", 4.0, None)


def test_the_extras_of_a_miss_have_no_token_and_say_how_long_it_has_waited(log, records):
    log(events.Missed(TASK, "job:1", HOLDER, "my id", "retry", 1.5, 3, 7.0))

    record = records[0]
    assert (record.token, record.owner, record.held_for, record.waited_for) == (None, None, None, 7.0)
    assert "held by app.sync[their id]" in record.getMessage()
    assert "try 3" in record.getMessage()
    assert "1.5 s" in record.getMessage()


def test_a_failing_renewal_is_told_aloud_ever_more_seldom(log, lease, records):
    for attempt in range(1, 101):
        log(events.RenewalFailed(TASK, "job:1", lease, OSError("no route"), 9.0, attempt))

    aloud = [record.getMessage() for record in records if record.levelname == "WARNING"]
    assert len(records) == 100
    assert "(try" not in aloud[0]
    assert [text.partition("(try ")[2].partition(")")[0] for text in aloud[1:]] == [
        "2",
        "4",
        "8",
        "16",
        "32",
        "64",
    ]


def test_a_renewal_after_failed_ones_says_that_it_is_over(log, lease, records):
    log(events.Renewed(TASK, "job:1", lease, 0.01, failures=1))
    log(events.Renewed(TASK, "job:1", lease, 0.01, failures=7))

    assert "again, after 1 try that failed" in records[0].getMessage()
    assert "again, after 7 tries that failed" in records[1].getMessage()


def test_a_store_out_of_reach_is_not_called_a_miss(log, caplog):
    caplog.set_level(logging.INFO)
    log(events.Missed(TASK, "job:1", None, "my id", "retry", 1.5, 3, 7.0, OSError("no route")))

    assert (
        "couldn't ask for 'job:1' (try 3), the store is out of reach: retry in 1.5 s. no route" in caplog.text
    )
    assert "missed" not in caplog.text


def test_a_store_out_of_reach_is_a_warning_at_first_and_then_now_and_then(log, records, clock):
    for _ in range(int(2 * NOW_AND_THEN)):
        log(events.Missed(TASK, "job:1", None, "my id", "retry", 1.5, 3, 7.0))
        clock.advance(1.0)

    levels = [record.levelname for record in records]
    assert levels == [*["WARNING", *["INFO"] * (int(NOW_AND_THEN) - 1)] * 2]


def flood(log, lease, how_many):
    for number in range(how_many):
        log(events.Renewed(TASK, f"job:{number}", lease, 0.01, reinstated=True))


def test_a_flood_of_one_kind_is_cut_off_and_counted_in_one_line(log, records, lease, clock, timers):
    flood(log, lease, 5000)
    aloud = LIMITS[logging.WARNING]
    assert [record.getMessage().split("'")[1] for record in records] == [f"job:{n}" for n in range(aloud)]
    ((seconds, function),) = timers
    assert seconds == SPAN
    clock.advance(seconds)
    function()

    assert len(records) == aloud + 1
    last = records[-1]
    assert (last.levelname, last.task_name) == ("WARNING", "app.sync")
    assert last.getMessage().startswith(f"And {5000 - aloud} more like this in the last 10 s, the last one: ")
    assert "'job:4999' had vanished" in last.getMessage()


def test_what_was_counted_is_told_of_by_the_next_line_where_no_thread_can_be_had(records, lease, clock):
    def no_thread(*_):
        raise RuntimeError

    log = Log(clock, Bounds(clock, no_thread))
    flood(log, lease, 100)
    clock.advance(SPAN)
    log(events.Lost(TASK, "job:1", lease, "taken"))

    assert [record.getMessage()[:9] for record in records[-2:]] == ["And 80 mo", "Lost the "]


def test_after_a_flood_the_next_line_is_written_again_and_nothing_is_told_twice(
    log, records, lease, clock, timers
):
    flood(log, lease, 100)
    clock.advance(SPAN)
    flood(log, lease, 1)
    timers[0][1]()

    aloud = LIMITS[logging.WARNING]
    assert len(records) == aloud + 2
    assert [record.getMessage()[:3] for record in records[-2:]] == ["And", "The"]


def test_a_flood_of_one_kind_hides_no_other(log, records, lease):
    flood(log, lease, 100)
    log(events.ReleasedLease(TASK, "job:1", lease, "gone", 4.0))

    assert "no longer ours" in records[-1].getMessage()


def test_more_errors_than_warnings_are_written(log, records, lease):
    for _ in range(1000):
        log(events.Lost(TASK, "job:1", lease, "taken"))

    assert len(records) == LIMITS[logging.ERROR] > LIMITS[logging.WARNING]


def test_what_each_message_has_one_of_and_what_is_for_the_curious_is_never_counted(log, records, lease):
    for _ in range(1000):
        log(events.Missed(TASK, "job:1", HOLDER, "my id", "retry", 1.5, 3, 7.0))
        log(events.Acquired(TASK, "job:1", lease, 0.0))

    assert len(records) == 2000


def test_a_thread_tells_of_what_was_counted_when_nothing_more_comes(records, lease, monkeypatch):
    monkeypatch.setattr("celery_fence.observers.bounds.SPAN", 0.05)
    told = threading.Event()
    bounds = Bounds()
    bounds.admit("kind", 0, lambda count: told.set())

    assert told.wait(10)


def test_a_lease_that_somebody_made_by_hand_is_named_as_such(log, records):
    by_hand = Holder("job:1", "their owner", 0, None)
    log(events.Missed(TASK, "job:1", by_hand, "my id", "retry", 1.5, 3, 7.0))

    assert "never expires (NO-TTL), owner 'their owner'" in records[0].getMessage()


def test_a_bare_hold_has_no_task_to_name(log, lease, records):
    log(events.Acquired(object(), "job:1", lease, 0.0))

    assert records[0].task_name is None


def test_each_signal_gets_the_source_and_the_facts_of_its_event(every):
    for event, _ in every:
        signal = SIGNALS.get(type(event))
        if signal is None:
            continue
        got = []

        def receiver(sender, got=got, **facts):
            got.append((sender, {name: value for name, value in facts.items() if name != "signal"}))

        signal.connect(receiver)
        send(event)
        signal.disconnect(receiver)

        expected = {
            field.name: getattr(event, field.name) for field in fields(event) if field.name != "source"
        }
        assert got == [(TASK, expected)]
        assert set(expected) == set(signal.providing_args)
        assert "key" in expected


def test_every_signal_has_an_event_that_sends_it():
    public = {name for name, value in vars(signals).items() if isinstance(value, Signal)}

    assert {signal.name for signal in SIGNALS.values()} == public


def test_a_receiver_that_raises_stops_no_other(every, lease):
    told = []

    def breaks(**_):
        raise RuntimeError

    def hears(**_):
        told.append(1)

    signals.lease_acquired.connect(breaks)
    signals.lease_acquired.connect(hears)
    send(events.Acquired(TASK, "job:1", lease, 0.0))
    signals.lease_acquired.disconnect(breaks)
    signals.lease_acquired.disconnect(hears)

    assert told == [1]
