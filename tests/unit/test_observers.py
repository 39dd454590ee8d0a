"""What others see of each event: one log line with structured extras, and a Celery-style signal."""

from __future__ import annotations

import logging
from dataclasses import fields

import pytest
from celery.utils.dispatch import Signal

from celery_fence import signals
from celery_fence.locking import events
from celery_fence.locking.store import Claim, Facts, Holder
from celery_fence.observers.logs import log
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
        (events.Missed(TASK, "job:1", None, "my id", "retry", 1.5, 3, 7.0), "INFO"),
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


def test_each_event_is_one_line_at_its_level_that_names_the_key(every, records):
    for event, level in every:
        records.clear()
        log(event)

        assert [(record.levelname, record.name) for record in records] == [(level, "celery_fence")]
        assert "'job:1'" in records[0].getMessage()


def test_a_miss_is_no_warning_and_has_no_traceback(every, records):
    for event, _ in every:
        if isinstance(event, events.Missed | events.Skipped | events.PutOff):
            log(event)

    assert records
    assert all(record.levelno < logging.WARNING and record.exc_info is None for record in records)


def test_every_line_has_all_the_extras(every, records):
    for event, _ in every:
        log(event)

    for record in records:
        assert vars(record).keys() >= EXTRAS
        assert (record.key, record.task_name, record.task_id) == ("job:1", "app.sync", "my id")


def test_the_extras_of_a_lease_are_its_own(lease, records):
    log(events.ReleasedLease(TASK, "job:1", lease, "released", 4.0))

    record = records[0]
    assert (record.token, record.owner, record.held_for, record.waited_for) == (1, "my owner", 4.0, None)


def test_the_extras_of_a_miss_have_no_token_and_say_how_long_it_has_waited(records):
    log(events.Missed(TASK, "job:1", HOLDER, "my id", "retry", 1.5, 3, 7.0))

    record = records[0]
    assert (record.token, record.owner, record.held_for, record.waited_for) == (None, None, None, 7.0)
    assert "held by app.sync[their id]" in record.getMessage()
    assert "try 3" in record.getMessage()
    assert "1.5 s" in record.getMessage()


def test_a_failing_renewal_is_told_aloud_ever_more_seldom(lease, records):
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


def test_a_renewal_after_failed_ones_says_that_it_is_over(lease, records):
    log(events.Renewed(TASK, "job:1", lease, 0.01, failures=1))
    log(events.Renewed(TASK, "job:1", lease, 0.01, failures=7))

    assert "again, after 1 try that failed" in records[0].getMessage()
    assert "again, after 7 tries that failed" in records[1].getMessage()


def test_a_store_out_of_reach_is_not_called_a_miss(caplog):
    caplog.set_level(logging.INFO)
    log(events.Missed(TASK, "job:1", None, "my id", "retry", 1.5, 3, 7.0))

    assert "couldn't ask for 'job:1' (try 3), the store is out of reach: retry in 1.5 s" in caplog.text
    assert "missed" not in caplog.text


def test_a_lease_that_somebody_made_by_hand_is_named_as_such(records):
    by_hand = Holder("job:1", "their owner", 0, None)
    log(events.Missed(TASK, "job:1", by_hand, "my id", "retry", 1.5, 3, 7.0))

    assert "never expires (NO-TTL), owner 'their owner'" in records[0].getMessage()


def test_a_bare_hold_has_no_task_to_name(lease, records):
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
