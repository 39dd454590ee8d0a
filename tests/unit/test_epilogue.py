"""When a delivery is noted as complete, and what a run does whose message a copy has taken over."""

from __future__ import annotations

from contextlib import suppress

import pytest
from celery.exceptions import Ignore, Reject
from celery.signals import worker_process_shutdown, worker_shutdown

from celery_fence import FencedTask
from celery_fence.errors import StoreUnavailable
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.store import Claim, DeliveryEnded, Ending, Granted
from celery_fence.stores.memory import MemoryStore
from celery_fence.task import copies
from celery_fence.task.install import runtime

MESSAGE = {"id": "one", "headers": {"fence": {"delivery": "d"}}}


@pytest.fixture
def deliver(app, in_worker):
    """Deliver the message to a late-acknowledged task with the given body."""

    def deliver(body, **options):
        def job(self):
            return body(self)

        given = {"base": FencedTask, "lock_key": "k", "bind": True, "acks_late": True, **options}
        task = app.tasks.get("job") or app.task(name="job", **given)(job)
        return in_worker(task, **MESSAGE)

    return deliver


@pytest.fixture
def look(leases):
    """What the store remembers of the message, once the heartbeat has written its notes."""

    def look(key="k", delivery="job|one|0|0.d"):
        process_heartbeat().flush(2.0)
        claim = Claim(key, "an onlooker", 1.0, delivery=delivery)
        answer = leases.acquire(claim)
        if isinstance(answer, Granted):
            leases.release(claim, answer.token)
        return answer if isinstance(answer, DeliveryEnded) else None

    return look


@pytest.fixture
def at_once(app, monkeypatch):
    """Notes that are written on the run's own path, at one more call."""
    written = []
    locker = runtime(app).locker(30.0)
    note_now = locker.note_now
    monkeypatch.setattr(locker, "note_now", lambda note: (written.append(note.how), note_now(note)))
    return written


def raising(error):
    def body(_):
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        (lambda task: "v", ("returned", "SUCCESS")),
        (raising(ValueError()), ("failed", "FAILURE")),
        (lambda task: task.retry(countdown=1), ("retried", "RETRY")),
        (raising(Ignore()), ("ignored", "IGNORED")),
        (raising(Reject(requeue=False)), ("rejected", "REJECTED")),
    ],
)
def test_each_end_is_noted_in_the_background_once_celery_is_done(deliver, look, at_once, body, ends):
    state = deliver(body).state
    end = look()

    assert (end.ending.how, state) == ends
    assert (end.noted, end.ending.value) == (True, None)
    assert at_once == []


@pytest.mark.parametrize("error", [Reject(requeue=True), SystemExit()])
def test_what_the_broker_delivers_again_is_not_remembered(deliver, look, error):
    with suppress(SystemExit):
        deliver(raising(error))

    assert look() is None


def test_a_value_too_large_to_keep_is_noted_after_its_result_at_one_more_call(deliver, look, at_once):
    assert deliver(lambda task: "x" * 9000).state == "SUCCESS"

    assert at_once == ["returned"]
    assert look().noted


def test_a_run_whose_release_met_no_store_asks_it_for_nothing_more(deliver, look, at_once, monkeypatch):
    release, asked = MemoryStore.release, []

    def away_at_first(store, *given):
        asked.append(given)
        if len(asked) == 1:
            raise StoreUnavailable("out of reach")
        return release(store, *given)

    monkeypatch.setattr(MemoryStore, "release", away_at_first)
    assert deliver(lambda task: "value").state == "SUCCESS"

    assert at_once == []
    assert look().noted


def test_a_copy_that_comes_before_a_large_result_is_stored_does_not_run(app, deliver, look, monkeypatch):
    """The key is free by then, so the store must know already that the body has ended."""
    seen = []
    store_result = type(app.backend).store_result
    monkeypatch.setattr(
        type(app.backend), "store_result", lambda *a, **k: (seen.append(look()), store_result(*a, **k))
    )
    deliver(lambda task: "x" * 9000)

    assert [(end.ending.how, end.noted) for end in seen] == [("returned", False)]


def test_a_value_that_cannot_be_serialised_is_remembered_after_its_failure(deliver, look):
    assert deliver(lambda task: object()).state == "FAILURE"

    assert look().noted


def test_what_the_result_backend_did_not_take_is_left_to_a_copy(app, deliver, look, monkeypatch):
    def refuse(*_, **__):
        raise OSError("the result backend is gone")

    monkeypatch.setattr(type(app.backend), "store_result", refuse)
    with pytest.warns(RuntimeWarning), pytest.raises(OSError, match="the result backend is gone"):
        deliver(lambda task: "v")
    end = look()

    assert (end.ending.how, end.noted) == ("returned", False)
    assert end.ending.value is not None


def test_what_the_store_could_not_remember_at_the_release_is_remembered_later(
    app, deliver, look, monkeypatch
):
    locker = runtime(app).locker(30.0)

    def refuse(*_):
        raise StoreUnavailable("out of reach")

    def body(task):
        monkeypatch.setattr(type(locker.store), "release", refuse)
        monkeypatch.setattr(type(locker.store), "note", refuse)
        return "v"

    deliver(body)
    assert process_heartbeat().noting == 2  # the release, and that the epilogue is complete
    monkeypatch.undo()

    assert look().noted


@pytest.mark.parametrize("policy", ["skip", "dead_letter", "raise"])
def test_a_terminal_decision_is_remembered_and_noted(deliver, occupy, leases, look, policy):
    occupy("k")
    deliver(lambda task: "v", miss_policy=policy)
    leases.force_release("k")
    end = look()

    assert end.noted
    assert end.ending.how == {"skip": "skipped", "dead_letter": "dead_lettered", "raise": "raised"}[policy]


@pytest.mark.parametrize("ends", [worker_process_shutdown, worker_shutdown])
def test_a_process_that_ends_writes_its_notes_first(deliver, ends):
    deliver(lambda task: "v")
    ends.send(sender=None)

    assert process_heartbeat().noting == 0


# --- STARTED ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [True, None])
def test_a_run_that_works_is_shown_as_started_and_a_copy_of_an_ended_one_is_not(app, deliver, option):
    """Celery's tracer would write STARTED over the FAILURE, and ``get()`` would wait for ever."""
    app.conf.task_track_started = True
    options = {} if option is None else {"track_started": option}
    seen = []

    def body(task):
        seen.append(app.backend.get_task_meta("one", cache=False)["status"])
        raise ValueError

    assert deliver(body, **options).state == "FAILURE"
    process_heartbeat().flush(2.0)
    assert deliver(body, **options).state == "IGNORED"
    assert app.backend.get_task_meta("one", cache=False)["status"] == "FAILURE"
    assert seen == ["STARTED"]


@pytest.mark.parametrize("options", [{}, {"track_started": True, "ignore_result": True}])
def test_a_run_whose_start_nobody_asked_for_is_not_shown_as_started(app, deliver, options):
    seen = []
    deliver(lambda task: seen.append(app.backend.get_task_meta("one", cache=False)["status"]), **options)

    assert seen == ["PENDING"]


# --- a copy has taken over ------------------------------------------------------------------------------


@pytest.fixture
def put_off(monkeypatch):
    """How often the message was published for later."""
    sent = []
    monkeypatch.setattr(copies, "send_again", lambda task, notes, *, delay, expires: sent.append(delay))
    return sent


class Copy:
    """A copy of the message, which takes the key away from the run, and may end."""

    def __init__(self, leases):
        self.leases = leases
        self.claim = None

    def take_over(self, task):
        facts = self.leases.holder("k").facts
        delivery = f"job|one|0|{facts.delivery}"
        self.claim = Claim("k", "the copy", 30.0, facts, delivery, "job|one")
        self.leases.force_release("k")
        self.token = self.leases.acquire(self.claim).token

    def end(self):
        self.leases.release(self.claim, self.token, Ending("returned"))


@pytest.fixture
def copy(leases):
    copy = Copy(leases)
    yield copy
    leases.force_release("k")


@pytest.fixture(params=["retry", "raise", "flag"])
def lost_policy(request):
    return request.param


@pytest.fixture(params=[lambda task: "v", raising(ValueError())], ids=["returns", "raises"])
def after(request, deliver, lost_policy):
    """Deliver the message to a run that loses its key in the given way, and then returns or raises."""

    def after(loss):
        def body(task):
            loss(task)
            return request.param(task)

        return deliver(body, lost_policy=lost_policy)

    return after


def test_a_run_whose_copy_has_finished_ends_silently(app, after, copy, put_off, look):
    assert after(lambda task: (copy.take_over(task), copy.end())).state == "IGNORED"
    assert app.backend.get_state("one") == "PENDING"
    assert put_off == []
    assert not look().noted, "the copy's epilogue is the copy's to note"


def test_a_run_whose_copy_still_works_publishes_the_message_for_later(app, after, copy, put_off, look):
    """On Redis its acknowledgement takes away the broker's record of the copy."""

    assert after(copy.take_over).state == "IGNORED"
    assert app.backend.get_state("one") == "PENDING"
    assert len(put_off) == 1
    assert look() is None
