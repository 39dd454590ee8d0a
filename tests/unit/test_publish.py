"""Sending a message again: to where it came from, with all that it had, and not acknowledged before."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import chain
from celery.app.task import Context
from celery.exceptions import Reject
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from celery_fence import FencedTask
from celery_fence.task import publish
from celery_fence.task.notes import HEADER, RUN, Notes, Route
from celery_fence.task.publish import Publisher, route_of, send_again


@pytest.fixture
def task(app):
    @app.task(base=FencedTask, lock_key="job:<key>", name="the task")
    def task(key, *, fencing_token): ...

    return task


@pytest.fixture
def receive(app, task):
    """Be the execution of a message with these facts."""
    pushed = []

    def receive(**facts):
        given = {
            "id": "its-id",
            "args": ["k"],
            "kwargs": {},
            "retries": 2,
            "headers": {},
            "called_directly": False,
            "delivery_info": {"exchange": "", "routing_key": app.conf.task_default_queue},
            **facts,
        }
        task.request_stack.push(Context(**given))
        pushed.append(task)
        return task.request

    yield receive
    for each in pushed:
        each.request_stack.pop()


@pytest.fixture
def waiting(app):
    """The messages that lie in a queue: headers, body and delivery facts."""

    def waiting(name=None):
        messages = []
        with app.connection_for_read() as connection:
            queue = connection.SimpleQueue(name or app.conf.task_default_queue)
            while queue.qsize():
                message = queue.get(block=False)
                message.ack()
                messages.append(message)
            queue.close()
        return messages

    return waiting


class TestTheRoute:
    @pytest.fixture
    def queues(self, app):
        topic = Exchange("jobs", type="topic")
        app.conf.task_queues = [
            Queue("plain"),
            Queue("named", Exchange("direct-one"), routing_key="go"),
            Queue("europe", topic, routing_key="eu.*.sync"),
            Queue("rest", topic, routing_key="us.#"),
            Queue("all", Exchange("news", type="fanout")),
        ]

    @pytest.mark.parametrize(
        "exchange, routing_key, queue",
        [
            ("", "plain", "plain"),
            ("direct-one", "go", "named"),
            ("jobs", "eu.7.sync", "europe"),
            ("jobs", "us.7.sync.now", "rest"),
            ("news", "whatever", "all"),
            ("direct-one", "unknown", ""),
            ("jobs", "eu.7.8.sync", ""),
            ("elsewhere", "go", ""),
        ],
    )
    def test_names_the_queue_where_it_is_known(self, app, queues, receive, exchange, routing_key, queue):  # noqa: PLR0917 - fixtures
        info = {"exchange": exchange, "routing_key": routing_key}

        assert route_of(app, receive(delivery_info=info)) == Route(exchange, routing_key, queue)

    def test_is_read_without_the_levels_of_rabbitmqs_delayed_delivery(self, app, queues, receive):
        info = {"exchange": "celery_delayed_0", "routing_key": "0." * 27 + "1." + "go"}

        assert route_of(app, receive(delivery_info=info)).queue == "named"

    def test_of_nothing_known_is_empty(self, app, queues, receive):
        assert route_of(app, receive(delivery_info=None)) == Route()


class TestTheDelay:
    @pytest.mark.parametrize("delay, countdown", [(0.0, None), (-1.0, None), (0.4, 0.4), (7.25, 7.25)])
    def test_is_kept_as_it_is_by_most_brokers(self, app, delay, countdown):
        assert publish._countdown(app, delay) == countdown

    @pytest.mark.parametrize("delay, countdown", [(0.0, None), (0.4, 1), (7.25, 8), (3.0, 3)])
    def test_is_whole_seconds_and_never_0_on_rabbitmq(self, app, delay, countdown):
        app.conf.broker_url = "amqp://"

        assert publish._countdown(app, delay) == countdown


class TestSendingAgain:
    def test_keeps_everything_of_the_message(self, app, task, receive, waiting):
        following, link, errback = task.si("next"), task.si("link"), task.si("errback")
        receive(
            headers={"x-tenant": "7", HEADER: {"delivery": "old"}, RUN: {"owner": "parent's"}},
            callbacks=[link],
            errbacks=[errback],
            chain=[following],
            group="its-group",
            expires="2099-01-01T00:00:00+00:00",
            timelimit=[9, 8],
            root_id="its-root",
            parent_id="its-parent",
            argsrepr="('*',)",
            kwargsrepr="{}",
            properties={"correlation_id": "its-id", "reply_to": "its-reply", "priority": 3},
            correlation_id="its-id",
            reply_to="its-reply",
        )
        send_again(task, Notes(delivery="kept", put_offs=1))

        (message,) = waiting()
        headers, (args, kwargs, embed) = message.headers, message.payload
        assert (headers["id"], headers["task"], headers["retries"]) == ("its-id", "the task", 2)
        assert (args, kwargs) == (["k"], {})
        assert (headers["root_id"], headers["parent_id"], headers["group"]) == (
            "its-root",
            "its-parent",
            "its-group",
        )
        assert headers["expires"].startswith("2099-01-01")
        assert (headers["timelimit"], headers["argsrepr"]) == ([9, 8], "('*',)")
        assert (headers["x-tenant"], headers[HEADER]) == ("7", {"delivery": "kept", "put_offs": 1})
        assert RUN not in headers
        assert [each["args"] for each in embed["callbacks"] + embed["errbacks"] + embed["chain"]] == [
            ["link"],
            ["errback"],
            ["next"],
        ]
        assert message.properties["reply_to"] == "its-reply"

    def test_drops_the_headers_by_which_rabbitmq_sees_a_loop(self, task, receive, waiting):
        receive(headers={"x-death": [1], "x-first-death-queue": "q", "x-last-death-reason": "r", "x-deaf": 1})
        send_again(task, Notes())

        headers = waiting()[0].headers
        assert "x-deaf" in headers
        assert not any("death" in name for name in headers)

    def test_goes_to_where_the_first_try_came_from(self, app, task, receive, waiting):
        receive()
        send_again(task, Notes(route=Route("", "elsewhere", "elsewhere")))

        assert waiting() == []
        assert len(waiting("elsewhere")) == 1

    def test_sends_it_in_the_serializer_of_the_original(self, app, task, receive, waiting):
        receive(**{RUN: {"serializer": "yaml", "compression": "gzip", "delivery_mode": 1}})
        app.conf.accept_content = ["json", "yaml"]
        send_again(task, Notes())

        message = waiting()[0]
        assert message.content_type == "application/x-yaml"
        assert message.headers["compression"] == "application/x-gzip"

    def test_later_gives_it_an_eta(self, task, receive, waiting):
        receive()
        send_again(task, Notes(), delay=30.0)

        assert waiting()[0].headers["eta"]

    def test_returns_the_signature_that_celerys_retry_shows(self, task, receive):
        receive()

        assert send_again(task, Notes(), delay=5.0).options["countdown"] == 5.0

    @pytest.mark.parametrize("acks_late, raised", [(True, Reject), (False, OperationalError)])
    def test_that_the_broker_refuses_gives_the_message_back_if_that_is_still_possible(
        self, task, receive, monkeypatch, acks_late, raised
    ):
        def refuses(*_, **__):
            raise OperationalError("no broker")

        receive()
        monkeypatch.setattr(task, "acks_late", acks_late)
        monkeypatch.setattr("kombu.Producer.publish", refuses)
        with pytest.raises(raised) as caught:
            send_again(task, Notes())

        assert raised is OperationalError or caught.value.requeue is True

    def test_after_a_failure_the_next_publish_is_a_new_delivery(self, task, receive, monkeypatch, waiting):
        receive()
        with monkeypatch.context() as broken:
            broken.setattr("kombu.Producer.publish", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                send_again(task, Notes(delivery="old"))
        task.delay("k")

        assert Notes.read(waiting()[0].headers).delivery not in ("", "old")


class TestThePublisher:
    def test_is_made_once_for_an_app_and_again_after_a_fork(self, app, monkeypatch):
        first = Publisher.of(app)
        assert Publisher.of(app) is first
        monkeypatch.setattr(publish, "os", SimpleNamespace(getpid=lambda: -1))

        assert Publisher.of(app) is not first

    def test_has_its_producers_confirmed_by_the_broker(self, app):
        with Publisher.of(app).producer() as producer:
            assert producer.connection.transport_options["confirm_publish"] is True


def test_a_chain_that_is_put_off_goes_on_afterwards(app, task, in_worker, occupy, waiting):
    occupy("job:k")
    chain(task.si("k"), task.si("next"), app=app).apply_async()
    (message,) = waiting()
    args, _, embed = message.payload
    in_worker(
        task, *args, id=message.headers["id"], headers={HEADER: message.headers[HEADER]}, chain=embed["chain"]
    )

    (again,) = waiting()
    assert again.headers["id"] == message.headers["id"]
    assert [step["args"] for step in again.payload[2]["chain"]] == [["next"]]
