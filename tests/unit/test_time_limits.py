"""A soft time limit that strikes while the lease store is asked, not the body."""

from __future__ import annotations

import threading

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from celery_fence import FencedTask, StoreUnavailable, hold
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.locker import Locker
from celery_fence.locking.store import Claim, DeliveryEnded
from celery_fence.stores.memory import MemoryStore

MESSAGE = {"id": "one", "headers": {"fence": {"delivery": "d"}}}


@pytest.fixture
def task(app):
    """A late-acknowledged task that calls what the test has put into ``task.does``."""

    @app.task(base=FencedTask, bind=True, lock_key="k", acks_late=True, name="job")
    def job(self, *, fencing_token):
        return job.does(self)

    job.__class__.does = staticmethod(lambda _: "done")
    return job


@pytest.fixture
def threads():
    """Which thread made each call of the kind that was struck."""
    return []


@pytest.fixture
def strike_in(monkeypatch, threads):
    """Let the soft time limit strike once, in a call of the store: before the server has heard, or after."""

    def strike_in(call, *, after=False):
        real, struck = getattr(MemoryStore, call), []

        def hangs(store, *asked):
            threads.append(threading.get_ident())
            if struck:
                return real(store, *asked)
            struck.append(asked)
            if after:
                real(store, *asked)
            raise SoftTimeLimitExceeded

        monkeypatch.setattr(MemoryStore, call, hangs)
        return struck

    return strike_in


@pytest.fixture
def end_of(leases):
    """How the delivery ended, as the store remembers it, once the heartbeat has paid what is owed."""

    def end_of(key="k", delivery="job|one|0|0.d"):
        process_heartbeat().flush(5.0)
        answer = leases.acquire(Claim(key, "an onlooker", 1.0, delivery=delivery))
        return answer.ending.how if isinstance(answer, DeliveryEnded) else None

    return end_of


@pytest.mark.parametrize("after", [False, True])
def test_in_the_release_the_value_of_the_body_stands_and_the_release_is_made_up_for(  # noqa: PLR0917 - fixtures
    task, in_worker, strike_in, end_of, leases, after
):
    struck = strike_in("release", after=after)
    outcome = in_worker(task, **MESSAGE)

    assert (outcome.state, outcome.value) == ("SUCCESS", "done")
    assert len(struck) == 1
    assert end_of() == "returned"
    assert leases.holder("k") is None


def test_in_the_release_the_record_of_the_work_is_made_up_for_too(app, in_worker, strike_in, end_of, leases):
    @app.task(base=FencedTask, bind=True, lock_key="k", idempotency_key="once", name="recorded")
    def recorded(self):
        return "done"

    strike_in("release")
    outcome = in_worker(recorded, **MESSAGE)

    assert outcome.state == "SUCCESS"
    assert end_of(delivery="recorded|one|0|0.d") == "returned"
    assert leases.record("once").done is not None


def test_in_the_release_the_error_of_the_body_stands(task, in_worker, strike_in, end_of):
    def fails(_):
        raise ZeroDivisionError

    task.__class__.does = staticmethod(fails)
    strike_in("release")
    outcome = in_worker(task, **MESSAGE)

    assert outcome.state == "FAILURE"
    assert isinstance(outcome.value, ZeroDivisionError)
    assert end_of() == "failed"


def test_after_it_nothing_more_is_asked_on_the_path_of_the_run(
    task, in_worker, strike_in, end_of, monkeypatch
):
    asked = []
    monkeypatch.setattr(Locker, "note_now", lambda self, note: asked.append(note))
    strike_in("release")
    in_worker(task, **MESSAGE)

    assert asked == []
    assert end_of() == "returned"


@pytest.mark.parametrize("after", [False, True])
def test_in_the_question_for_the_lease_it_is_an_outage_and_what_was_granted_is_given_back(  # noqa: PLR0917 - fixtures
    task, in_worker, strike_in, sent, leases, after
):
    ran = []
    task.__class__.does = staticmethod(ran.append)
    strike_in("acquire", after=after)
    outcome = in_worker(task, **MESSAGE)
    process_heartbeat().flush(5.0)

    assert outcome.state == "RETRY"
    assert isinstance(outcome.value, StoreUnavailable)
    assert "the body hasn't begun" in str(outcome.value)
    assert [headers["id"] for headers, _ in sent] == ["one"]
    assert ran == []
    assert leases.holder("k") is None


def test_in_the_question_for_the_lease_it_fails_a_task_that_fails_in_an_outage(
    task, in_worker, strike_in, sent
):
    task.__class__.outage_policy = "raise"
    strike_in("acquire")
    outcome = in_worker(task, **MESSAGE)

    assert (outcome.state, type(outcome.value)) == ("FAILURE", StoreUnavailable)
    assert sent == []


@pytest.mark.parametrize("policy", ["retry", "skip"])
def test_in_a_copy_s_look_at_its_result_the_body_does_not_begin_with_its_limit_spent(  # noqa: PLR0917 - fixtures
    app, task, in_worker, sent, leases, monkeypatch, policy
):
    """The result backend hangs, in the copy that was granted the key, or in the look before it asks for it."""

    def hangs(*_):
        raise SoftTimeLimitExceeded

    ran = []
    task.__class__.does = staticmethod(ran.append)
    task.__class__.miss_policy = policy
    monkeypatch.setattr(type(app.backend), "get_state", hangs)
    route = {"exchange": "", "routing_key": app.conf.task_default_queue, "redelivered": True}
    in_worker(task, **MESSAGE, delivery_info=route)
    process_heartbeat().flush(5.0)

    assert ran == []
    assert [headers["id"] for headers, _ in sent] == ["one"]
    assert leases.holder("k") is None


def test_in_the_question_for_the_lease_it_brings_a_task_back_that_runs_without_one_in_an_outage(
    task, in_worker, strike_in, sent, leases
):
    """Celery's limit strikes once: the body would run without it."""
    ran = []
    task.__class__.does = staticmethod(ran.append)
    task.__class__.outage_policy = "run"
    strike_in("acquire", after=True)
    outcome = in_worker(task, **MESSAGE)
    process_heartbeat().flush(5.0)

    assert (outcome.state, type(outcome.value)) == ("RETRY", StoreUnavailable)
    assert ran == []
    assert leases.holder("k") is None
    ((again, _),) = sent
    assert in_worker(task, id="one", headers={"fence": again["fence"]}).state == "SUCCESS"
    assert len(ran) == 1


@pytest.mark.parametrize("policy", ["retry", "run", "raise"])
def test_in_the_question_of_an_eager_run_it_is_the_limit_of_the_body_around_it(
    task, strike_in, sent, leases, policy
):
    task.__class__.outage_policy = policy
    strike_in("acquire", after=True)
    outcome = task.apply()
    process_heartbeat().flush(5.0)

    assert (outcome.state, type(outcome.result)) == ("FAILURE", SoftTimeLimitExceeded)
    assert sent == []
    assert leases.holder("k") is None


def test_in_the_body_it_is_the_outcome_as_ever(task, in_worker, end_of):
    def strikes(_):
        raise SoftTimeLimitExceeded

    task.__class__.does = staticmethod(strikes)
    outcome = in_worker(task, **MESSAGE)

    assert (outcome.state, type(outcome.value)) == ("FAILURE", SoftTimeLimitExceeded)
    assert end_of() == "failed"


def test_in_the_release_of_a_block_it_is_the_body_s_and_the_release_is_made_up_for(
    task, in_worker, strike_in, leases, threads
):
    def within_a_block(_):
        try:
            with hold("inner"):
                strike_in("release")
        finally:
            asked.extend(each for each in threads if each == threading.get_ident())

    asked = []
    task.__class__.does = staticmethod(within_a_block)
    outcome = in_worker(task, **MESSAGE)
    process_heartbeat().flush(5.0)

    assert (outcome.state, type(outcome.value)) == ("FAILURE", SoftTimeLimitExceeded)
    assert leases.holder("inner") is None
    assert len(asked) == 1  # and not once more of a store that may hang


@pytest.mark.parametrize("stops", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_process_is_no_time_limit(task, in_worker, leases, monkeypatch, stops):
    """A pool process that is terminated ends, and gives the lease back on its way out."""
    release, calls = MemoryStore.release, []

    def interrupted(store, *asked):
        calls.append(asked)
        if len(calls) == 1:
            raise stops
        return release(store, *asked)

    monkeypatch.setattr(MemoryStore, "release", interrupted)
    with pytest.raises(stops):
        in_worker(task, **MESSAGE)

    assert len(calls) == 2
    assert leases.holder("k") is None
