"""A copy that could run although its message has an outcome: the store may be about to hear of its end."""

from __future__ import annotations

import pytest
from celery import states

from celery_fence import FencedTask
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.store import Claim, Ending
from celery_fence.task.ended_copies import DOUBT
from celery_fence.task.notes import HEADER, Notes

COPY = {"redelivered": True}
FIRST = Notes("d")


@pytest.fixture
def ran():
    return []


@pytest.fixture
def task(app, ran):
    @app.task(base=FencedTask, bind=True, lock_key="k", acks_late=True, name="job")
    def job(self):
        ran.append(self.request.id)
        return "done"

    return job


@pytest.fixture
def deliver(app, task, in_worker):
    """Deliver the message, with *notes* in its header."""

    def deliver(notes=FIRST, *, task=task, **delivery_info):
        route = {"exchange": "", "routing_key": app.conf.task_default_queue, **delivery_info}
        return in_worker(task, id="one", headers={HEADER: notes.header()}, delivery_info=route).state

    return deliver


@pytest.fixture
def has_outcome(app):
    """The original has ended, and its result is stored."""
    app.backend.store_result("one", "done", states.SUCCESS)


def notes_sent(sent):
    return [Notes.read(headers) for headers, _ in sent]


@pytest.mark.usefixtures("has_outcome")
def test_it_is_put_off_once_and_finds_the_end_that_the_store_has_heard_of_since(deliver, sent, leases, ran):
    assert deliver(**COPY) == states.IGNORED
    (notes,) = notes_sent(sent)
    assert (notes.delivery, notes.doubts, notes.put_offs) == ("d", 1, 1)
    assert leases.holder("k") is None
    owing = Claim("k", "the original", 30.0, delivery="job|one|0|0.d")
    leases.release(owing, leases.acquire(Claim("k", "the original", 30.0)).token, Ending("returned"))
    deliver(notes)

    assert ran == []


@pytest.mark.usefixtures("has_outcome")
def test_it_gives_the_store_time_to_hear_of_the_end_and_leaves_the_key_free_meanwhile(
    deliver, leases, monkeypatch
):
    def send_again(*_, delay, **__):
        delays.append(delay)
        holders.append(leases.holder("k"))

    delays, holders = [], []
    monkeypatch.setattr("celery_fence.task.copies.send_again", send_again)
    deliver(**COPY)

    assert holders == [None]
    assert DOUBT <= delays[0] <= 2 * DOUBT


@pytest.mark.usefixtures("has_outcome")
def test_it_runs_if_the_store_knows_nothing_of_an_end_afterwards(deliver, ran, sent):
    deliver(**COPY)
    (notes,) = notes_sent(sent)

    assert deliver(notes) == states.SUCCESS
    assert ran == ["one"]


@pytest.mark.usefixtures("has_outcome")
def test_a_message_that_is_no_copy_runs_whatever_is_stored_under_its_id(deliver, ran, sent):
    assert deliver() == states.SUCCESS
    assert ran == ["one"]
    assert sent == []


def test_a_copy_without_an_outcome_runs_at_once(deliver, ran):
    assert deliver(**COPY) == states.SUCCESS
    assert ran == ["one"]


@pytest.mark.usefixtures("has_outcome")
def test_one_with_a_record_runs_at_once_for_a_grant_that_is_given_back_would_take_the_record_along(
    app, deliver, ran
):
    @app.task(
        base=FencedTask, bind=True, lock_key="k", acks_late=True, name="recorded", idempotency_key="once"
    )
    def job(self):
        ran.append(self.request.id)

    assert deliver(task=job, **COPY) == states.SUCCESS
    assert ran == ["one"]


@pytest.mark.usefixtures("has_outcome")
def test_a_doubt_counts_no_more_once_the_lease_was_taken(task, deliver, sent):
    def fails_and_comes_again():
        raise task.retry(countdown=0)

    task.run = fails_and_comes_again
    deliver(Notes("d", doubts=1, put_offs=1), **COPY)
    process_heartbeat().flush(2.0)

    assert [each.doubts for each in notes_sent(sent)] == [0]
