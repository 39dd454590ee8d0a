"""The worker's main process: the owner it makes for each delivery, and the events it sends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from billiard.einfo import ExceptionInfo
from kombu.utils.json import dumps

from celery_fence import DeadLettered, FencedTask
from celery_fence.task.notes import RUN
from celery_fence.task.request import FencedRequest
from celery_fence.task.skip import Skipped


class Eventer(list):
    """Keeps the events that a worker would send."""

    enabled = True

    def __bool__(self):
        return True  # Celery asks whether there is one

    def send(self, name, **fields):
        self.append((name, fields))


@pytest.fixture
def eventer():
    return Eventer()


@pytest.fixture
def request_for(app, eventer):
    @app.task(base=FencedTask, lock_key="job:<key>", name="the task")
    def task(key): ...

    def make(**facts):
        message = SimpleNamespace(
            headers={"id": "its-id", "task": "the task", "compression": None, **facts.pop("headers", {})},
            body=dumps([["k"], {}, {}]),
            content_type="application/json",
            content_encoding="utf-8",
            properties={"delivery_mode": 2},
            delivery_info={},
            delivery_tag=1,
            payload=[["k"], {}, {}],
            acknowledged=False,
            **facts,
        )
        return FencedRequest(message, app=app, task=task, eventer=eventer, on_ack=lambda *_: None)

    return make


def test_each_delivery_has_an_owner_of_its_own_that_its_pool_process_is_handed(request_for):
    first, second = (request_for().request_dict[RUN]["owner"] for _ in range(2))

    assert first != second
    assert len(first) == 32


def test_what_only_this_process_sees_of_the_message_is_handed_over(request_for):
    handed = request_for(headers={"compression": "application/x-gzip"}).request_dict[RUN]

    assert (handed["serializer"], handed["compression"], handed["delivery_mode"]) == (
        "json",
        "application/x-gzip",
        2,
    )


def fail(request, error):
    try:
        raise error
    except type(error):
        request.on_failure(ExceptionInfo(internal=isinstance(error, Skipped)), send_failed_event=True)


def test_a_skip_sends_its_own_event_with_the_record(request_for, eventer):
    fail(request_for(), Skipped({"celery_fence": "skipped"}, "skipped: job:k is held by their task"))

    assert [name for name, _ in eventer] == ["task-skipped"]
    assert "celery_fence" in eventer[0][1]["result"]
    assert eventer[0][1]["exception"] == "skipped: job:k is held by their task"
    assert eventer[0][1]["uuid"] == "its-id"


def test_a_dead_letter_sends_its_own_event_in_place_of_the_failure(request_for, eventer):
    fail(request_for(), DeadLettered("given up", key="job:k"))

    assert [name for name, _ in eventer] == ["task-dead_lettered"]


def test_any_other_failure_is_celerys(request_for, eventer):
    fail(request_for(), ValueError("the body's"))

    assert [name for name, _ in eventer] == ["task-failed"]


def test_where_events_are_off_nothing_is_sent_and_nothing_breaks(request_for, eventer):
    eventer.enabled = False
    fail(request_for(), Skipped({}, "skipped"))

    assert eventer == []
