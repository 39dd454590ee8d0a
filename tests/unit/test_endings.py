"""How a delivery ended, what is kept of its value, and what a copy finds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from hypothesis import given
from hypothesis import strategies as st

from celery_fence import FencedTask
from celery_fence.locking.policies import Fail, GiveUp, SendLater, SendToBack, SkipRun
from celery_fence.locking.store import Claim, Ending, Note
from celery_fence.task import ended_copies
from celery_fence.task.endings import (
    LARGEST_VALUE,
    ending_of_decision,
    ending_of_error,
    ending_of_value,
    followers_delivery,
    remembered_value,
)
from celery_fence.task.install import runtime
from celery_fence.task.run import Run, run_of


def nothing():
    """Do nothing."""


@pytest.fixture
def make_run(app):
    """A run of a task with the given options, as its request would make it."""

    def make(value=None, /, *, options=None, request=None):
        task = app.task(
            **{"base": FencedTask, "lock_key": "k", "acks_late": True, **(options or {})},
            name=f"task-{len(made)}",
        )(nothing)
        task.push_request(**{"id": "id", "headers": {}, "retries": 0, "is_eager": False, **(request or {})})
        made.append(task)
        return Run(task, task.request, (), {})

    made = []
    yield make
    for task in made:
        task.pop_request()


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (Retry(), "retried"),
        (Reject("why", requeue=False), "rejected"),
        (Ignore(), "ignored"),
        (Ignore("Replaced by new task"), "replaced"),
        (ValueError(), "failed"),
        (SoftTimeLimitExceeded(), "failed"),
    ],
)
def test_each_end_of_a_body_has_its_name(error, how):
    assert ending_of_error(error) == Ending(how)


@pytest.mark.parametrize("error", [Reject("why", requeue=True), SystemExit(), KeyboardInterrupt()])
def test_what_brings_the_message_back_is_no_end(error):
    assert ending_of_error(error) is None


@pytest.mark.parametrize(
    ("decision", "how"),
    [
        (SkipRun(None, "stop", has_result=False), "skipped"),
        (GiveUp(None, "held"), "dead_lettered"),
        (Fail("held"), "raised"),
        (SendLater(1.0, 0, 1), ""),
        (SendToBack(0.0, 0, 1), ""),
    ],
)
def test_only_a_decision_that_is_final_is_an_end(decision, how):
    assert ending_of_decision(decision) == how


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(value=json_values)
def test_a_kept_value_is_the_value_again(value):
    app = plain_app()
    run = late_run(app)
    try:
        ending = ending_of_value(run, value)
        assert remembered_value(app, ending.value) == value
    finally:
        run.task.pop_request()


def plain_app():
    """An app that lives as long as the tests; Hypothesis wants no fixture of a single test."""
    if not _APPS:
        from celery import Celery

        _APPS.append(Celery("endings", set_as_current=False, broker="memory://", backend="cache+memory://"))
        _APPS[0].conf.fence_url = "memory://endings"
        late = {"base": FencedTask, "lock_key": "k", "acks_late": True, "name": "late", "shared": False}
        _APPS[0].task(**late)(nothing)
        _APPS[0].finalize()
    return _APPS[0]


_APPS: list = []


def late_run(app):
    task = app.tasks["late"]
    task.push_request(id="id", headers={}, retries=0, is_eager=False)
    return Run(task, task.request, (), {})


def test_with_pickle_a_kept_value_is_the_value_again(app, make_run):
    app.conf.update(result_serializer="pickle", accept_content=["pickle", "json"])
    value = {"a", ("b", 1)}

    assert remembered_value(app, ending_of_value(make_run(), value).value) == value


def test_a_value_of_8_kb_is_kept_and_one_byte_more_is_not(make_run):
    run = make_run()
    head = len(ending_of_value(run, "").value)
    largest = "x" * (LARGEST_VALUE - head)

    assert len(ending_of_value(run, largest).value) == LARGEST_VALUE
    assert ending_of_value(run, largest + "x") == Ending("returned")


def test_a_value_that_cannot_be_serialised_is_left_to_celery(make_run):
    assert ending_of_value(make_run(), object()) == Ending("returned")


def test_where_results_are_not_to_be_remembered_no_value_is_kept(app, make_run):
    app.conf.fence_remember_results = False

    assert ending_of_value(make_run(), "v") == Ending("returned")


@pytest.mark.parametrize(
    ("options", "request_", "kept"),
    [
        ({}, {}, True),
        ({"acks_late": False}, {}, False),
        ({"ignore_result": True}, {}, False),
        ({"ignore_result": True}, {"ignore_result": False}, True),
        ({}, {"ignore_result": True}, False),
        ({"ignore_result": True}, {"callbacks": [{"task": "link"}]}, True),
        ({"ignore_result": True}, {"chain": [{"task": "next"}]}, True),
        ({"ignore_result": True}, {"chord": {"task": "body"}}, True),
    ],
)
def test_a_value_is_kept_only_where_a_copy_may_come_and_something_needs_it(make_run, options, request_, kept):
    ending = ending_of_value(make_run(options=options, request=request_), "v")

    assert ending.how == "returned"
    assert (ending.value is not None) == kept


def test_what_follows_a_run_is_the_same_delivery_each_time_and_another_for_each_follower(make_run):
    stamped = {"headers": {"fence": {"delivery": "d"}}}
    run = make_run(request=stamped)
    again = Run(run.task, run.task.request, (), {})
    other = make_run(request={"id": "other", **stamped})
    ids = [
        followers_delivery(run, "step", "next"),
        followers_delivery(run, "step", "next"),  # a second message under that id is another delivery
        followers_delivery(run, "step", "2"),
        followers_delivery(run, "other", "next"),
        followers_delivery(other, "step", "next"),
    ]

    assert len(set(ids)) == len(ids)
    assert [followers_delivery(again, "step", "next") for _ in range(2)] == ids[:2]


# --- what a copy finds ------------------------------------------------------------------------------


MESSAGE = {"id": "one", "headers": {"fence": {"delivery": "d"}}}


@pytest.fixture
def job(app):
    """A task that fails if it is told to; `ran` has a token for each run of its body."""

    @app.task(base=FencedTask, lock_key="k", bind=True, acks_late=True, name="job")
    def job(self, fails=False):
        job.ran.append(self.lease.token)
        if fails:
            raise ValueError("as planned")
        return "value"

    job.ran = []
    return job


@pytest.fixture
def remember(leases):
    """Let the store know that the delivery has ended so."""

    def remember(how, *, value=None, noted=False, delivery="job|one|0|0.d"):
        claim = Claim("k", "the first run", 30.0, delivery=delivery)
        granted = leases.acquire(claim)
        leases.release(claim, granted.token, Ending(how, value))
        if noted:
            leases.note([Note("k", delivery, how, 60.0)])

    return remember


def encoded(text):
    return b"application/json;utf-8\n" + f'"{text}"'.encode()


@pytest.fixture
def put_off(monkeypatch):
    """Delays with which copies were published again."""
    delays = []
    monkeypatch.setattr(
        "celery_fence.task.copies.send_again",
        lambda task, notes, *, delay, expires: delays.append((delay, expires)),
    )
    return delays


@pytest.mark.parametrize(
    "how",
    [
        "returned",
        "failed",
        "retried",
        "replaced",
        "ignored",
        "rejected",
        "skipped",
        "dead_lettered",
        "raised",
    ],
)
def test_a_copy_of_a_noted_delivery_ends_silently_however_that_ended(job, remember, in_worker, put_off, how):
    remember(how, noted=True)

    assert in_worker(job, **MESSAGE).state == "IGNORED"
    assert (job.ran, put_off) == ([], [])


def test_a_copy_of_a_young_unnoted_delivery_comes_again_later(job, remember, in_worker, put_off):
    remember("returned", value=encoded("kept"))

    assert in_worker(job, **MESSAGE).state == "IGNORED"
    assert job.ran == []
    ((delay, expires),) = put_off
    assert delay == pytest.approx(30.0, abs=1)
    assert expires is None  # a copy that expired would write REVOKED over the running message


@pytest.fixture
def old(monkeypatch):
    """What has ended, ended long ago."""
    young = ended_copies.ended_before
    monkeypatch.setattr(
        ended_copies, "ended_before", lambda run, end: young(run, replace(end, age=end.age + 60.0))
    )


def test_a_returned_delivery_is_completed_from_its_value_without_the_body(job, remember, in_worker, old):
    remember("returned", value=encoded("kept"))
    outcome = in_worker(job, **MESSAGE)

    assert (outcome.state, outcome.value, job.ran) == ("SUCCESS", "kept", [])
    assert job.backend.get_result("one") == "kept"


@pytest.mark.parametrize("how", ["dead_lettered", "raised", "failed"])
def test_a_copy_of_an_old_failure_that_was_stored_and_never_noted_does_not_come_round_for_ever(  # noqa: PLR0917 - fixtures
    job, remember, in_worker, put_off, old, how
):
    """Its process died between the result and the note; the copy is marked as one."""
    remember(how)
    job.backend.store_result("one", ValueError("the end"), "FAILURE")
    outcome = in_worker(job, **MESSAGE, delivery_info={"redelivered": True})

    assert outcome.state == "IGNORED"
    assert (job.ran, put_off) == ([], [])
    assert job.backend.get_state("one") == "FAILURE"


def test_a_copy_that_only_completes_is_not_shown_as_started(app, remember, in_worker, old, monkeypatch):
    job = app.task(base=FencedTask, lock_key="k", acks_late=True, track_started=True, name="job")(nothing)
    stored = []
    monkeypatch.setattr(type(app.backend), "store_result", lambda _, *args, **k: stored.append(args[2]))
    remember("returned", value=encoded("kept"))
    in_worker(job, **MESSAGE)

    assert stored == ["SUCCESS"]


def test_a_returned_delivery_whose_value_nothing_needs_ends_silently(job, remember, in_worker, old):
    job.ignore_result = True
    remember("returned")

    assert (in_worker(job, **MESSAGE).state, job.ran) == ("IGNORED", [])


def test_a_returned_delivery_whose_value_is_needed_and_was_not_kept_runs_again(job, remember, in_worker, old):
    remember("returned")

    assert in_worker(job, **MESSAGE).value == "value"
    assert len(job.ran) == 1


def test_a_failed_delivery_that_was_not_noted_runs_again(job, remember, in_worker, old):
    remember("failed")

    assert in_worker(job, True, **MESSAGE).state == "FAILURE"
    assert len(job.ran) == 1


def test_a_failed_delivery_whose_failure_is_stored_ends_silently_although_its_note_is_late(
    job, remember, in_worker, old
):
    """Its process may be frozen between the two, and note it when it wakes: a second run would be in its way."""
    remember("failed")
    job.backend.store_result("one", ValueError("of the first"), "FAILURE")

    assert (in_worker(job, **MESSAGE).state, job.ran) == ("IGNORED", [])
    assert "of the first" in str(job.backend.get_result("one"))


@pytest.mark.parametrize(
    "follows",
    [
        {"errbacks": [{"task": "tell"}]},
        {"chord": {"task": "body", "options": {"task_id": "body"}}, "group": "g"},
    ],
)
def test_a_failed_delivery_that_somebody_has_yet_to_be_told_of_runs_again(
    job, remember, in_worker, old, follows
):
    remember("failed")
    job.backend.store_result("one", ValueError("of the first"), "FAILURE")
    in_worker(job, **MESSAGE, **follows)

    assert len(job.ran) == 1


@pytest.mark.parametrize("how", ["retried", "replaced", "ignored", "rejected"])
def test_what_was_published_before_its_end_is_not_published_again(job, remember, in_worker, old, how):
    remember(how)

    assert (in_worker(job, **MESSAGE).state, job.ran) == ("IGNORED", [])


@pytest.mark.parametrize(
    ("message", "runs"),
    [
        ({"headers": {"fence": {"delivery": "d"}}}, 0),
        ({"headers": {"fence": {"delivery": "other"}}}, 1),
        ({"headers": {"fence": {"delivery": "d"}}, "retries": 1}, 1),
        ({"headers": {"fence": {"delivery": "d"}}, "replaced_task_nesting": 1}, 1),
        ({"headers": {"fence": {"delivery": "d"}}, "id": "another"}, 1),
    ],
)
def test_a_delivery_is_task_id_retries_nesting_and_delivery_id(job, remember, in_worker, message, runs):
    remember("failed", noted=True)
    in_worker(job, **{**MESSAGE, **message})

    assert len(job.ran) == runs


@pytest.mark.parametrize(
    ("message", "runs"),
    [
        ({"properties": {"delivery_tag": "the same"}}, 0),
        ({"properties": {"delivery_tag": "another"}}, 1),
        ({"properties": {"delivery_tag": 1}, "delivery_info": {"redelivered": True}}, 1),
    ],
)
def test_without_a_delivery_id_the_tag_of_redis_tells_a_copy(job, remember, in_worker, message, runs):
    """RabbitMQ's tag is a number of its channel, and its flag doesn't say that this message has run."""
    remember("failed", noted=True, delivery="job|one|0|0.the same")
    in_worker(job, **{"id": "one", "headers": {}, **message})

    assert len(job.ran) == runs


def test_a_run_knows_its_delivery_only_in_a_worker(make_run):
    run = make_run(request={"is_eager": True})

    assert (run.identity, run_of(run.task.request), runtime(run.task.app) is not None) == ("", None, True)
