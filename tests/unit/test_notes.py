"""Counts of one wait, and the delivery id that tells copies from new messages."""

from __future__ import annotations

import uuid

import pytest
from celery import chain, group
from celery.beat import ScheduleEntry, Scheduler
from celery.signals import before_task_publish

from celery_fence import FencedTask
from celery_fence.task.notes import HEADER, RUN, Count, Notes, Route, same_delivery, stamp_delivery


def test_an_empty_header_is_empty():
    assert Notes().header() == {}


def test_counts_add_up_over_the_stages_and_each_stage_has_its_own_clock():
    first = Count().another(stage=0, attempt=1, now=100.0)
    second = first.another(stage=0, attempt=2, now=130.0)
    third = second.another(stage=1, attempt=1, now=150.0)

    assert (second.waited(160.0), second.waited_in_stage(160.0)) == (60.0, 60.0)
    assert (third.waited(160.0), third.waited_in_stage(160.0), third.since_last(160.0)) == (60.0, 10.0, 10.0)
    assert (third.total, third.attempt) == (3, 1)


def test_before_the_first_miss_nothing_was_waited_for():
    assert (Count().waited(100.0), Count().waited_in_stage(100.0), Count().since_last(100.0)) == (
        0.0,
        0.0,
        None,
    )


def test_a_clock_that_went_back_makes_no_negative_wait():
    count = Count().another(stage=0, attempt=1, now=100.0)

    assert (count.waited(90.0), count.waited_in_stage(90.0), count.since_last(90.0)) == (0.0, 0.0, 0.0)


def test_once_the_lease_is_taken_only_the_delivery_and_the_losses_are_left():
    route = Route("e", "k", "q")
    notes = Notes(delivery="d", losses=2, put_offs=3)
    notes = notes.missed(0, 1, 100.0, route).outage(0, 1, 101.0, route)

    assert notes.cleared() == Notes(delivery="d", losses=2)


def test_misses_and_outages_are_counted_apart():
    notes = Notes().missed(0, 1, 100.0, Route()).outage(0, 1, 101.0, Route()).missed(0, 2, 102.0, Route())

    assert (notes.misses.total, notes.outages.total) == (2, 1)


def test_the_first_route_counts_however_often_it_misses():
    first, later = Route("", "", "first"), Route("", "", "later")

    assert Notes().missed(0, 1, 100.0, first).missed(0, 2, 101.0, later).route == first


def test_a_truth_value_is_no_count():
    assert Notes.read({HEADER: {"losses": True, "misses": {"total": True}}}) == Notes()


class TestTheDeliveryId:
    def test_each_publish_has_a_new_one(self):
        headers = [{}, {}]
        for each in headers:
            stamp_delivery(headers=each)
        first, second = (Notes.read(each).delivery for each in headers)

        assert first != second
        assert uuid.UUID(first)

    def test_a_republish_of_our_own_keeps_it_with_its_counts(self):
        notes = Notes(delivery="kept").missed(0, 1, 100.0, Route())
        headers = {HEADER: notes.header()}
        with same_delivery():
            stamp_delivery(headers=headers)

        assert Notes.read(headers) == notes

    def test_after_that_block_it_is_new_again_also_when_the_publish_failed(self):
        with pytest.raises(OSError, match="broker"), same_delivery():
            raise OSError("broker")
        headers = {HEADER: {"delivery": "old"}}
        stamp_delivery(headers=headers)

        assert Notes.read(headers).delivery != "old"

    def test_a_users_retry_is_a_new_delivery_without_the_counts_of_the_wait(self):
        headers = {
            HEADER: Notes(delivery="old", losses=1).missed(0, 1, 1.0, Route()).header(),
            RUN: {"owner": 1},
        }
        stamp_delivery(headers=headers)
        notes = Notes.read(headers)

        assert notes.delivery != "old"
        assert notes == Notes(delivery=notes.delivery)
        assert RUN not in headers

    def test_the_headers_of_others_are_left_alone(self):
        headers = {"x-tenant": "7"}
        stamp_delivery(headers=headers)

        assert headers["x-tenant"] == "7"

    def test_a_publish_without_headers_is_left_alone(self):
        stamp_delivery(headers=None)


def beat(app, task):
    scheduler = Scheduler(app, lazy=True)
    scheduler.apply_async(ScheduleEntry("each", task.name, schedule=60, args=("k",), app=app), advance=False)


WAYS = {
    "delay": lambda app, task: task.delay("k"),
    "apply_async": lambda app, task: task.apply_async(("k",), task_id="same"),
    "send_task": lambda app, task: app.send_task(task.name, ("k",)),
    "a signature": lambda app, task: task.si("k").apply_async(),
    "a group": lambda app, task: group(task.si("k"), app=app).apply_async(),
    "a chain": lambda app, task: chain(task.si("k"), task.si("k"), app=app).apply_async(),
    "beat": beat,
}


class TestEveryWayOfSending:
    @pytest.fixture
    def tasks(self, app):
        @app.task(base=FencedTask, lock_key="job:<key>", name="deliveries.fenced")
        def fenced(key, *, fencing_token):
            pass

        @app.task(name="deliveries.plain")
        def plain(key):
            pass

        app.finalize()
        return fenced, plain

    @pytest.fixture
    def sent(self):
        """What is published: name and delivery id of each message."""
        sent = []

        def note(sender, headers, **_):
            sent.append((sender, Notes.read(headers).delivery))

        before_task_publish.connect(note)
        yield sent
        before_task_publish.disconnect(note)

    @pytest.mark.parametrize("way", WAYS)
    def test_stamps_a_new_id(self, app, tasks, sent, way):
        fenced, _ = tasks
        WAYS[way](app, fenced)
        WAYS[way](app, fenced)

        assert [name for name, _ in sent] == [fenced.name] * 2
        assert all(delivery for _, delivery in sent)
        assert len(set(sent)) == 2

    def test_a_plain_task_gets_no_header_of_ours(self, tasks, sent):
        _, plain = tasks
        plain.delay("k")

        assert sent == [(plain.name, "")]
