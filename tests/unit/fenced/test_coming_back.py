"""A message that comes back hides no outcome, and one that must run again does."""

from __future__ import annotations

from typing import ClassVar

import pytest
from celery.exceptions import Reject
from celery.signals import after_task_publish

from celery_fence import FencedTask
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.store import Claim


class TestAMessageThatComesBack:
    @pytest.mark.parametrize("policy", ["retry", "requeue"])
    def test_never_stores_its_retry_over_what_its_copy_has_stored(self, task, in_worker, occupy, app, policy):
        """Another worker may have run the copy before this one goes on."""
        states = []

        def run_at_once(headers, **_):
            states.append(app.AsyncResult(headers["id"]).state)
            app.backend.store_result(headers["id"], ValueError("of the copy"), "FAILURE")

        occupy("job:k")
        after_task_publish.connect(run_at_once)
        outcome = in_worker(task(miss_policy=policy), "k", id="mine")
        after_task_publish.disconnect(run_at_once)

        assert (outcome.state, states) == ("RETRY", ["RETRY"])
        assert "of the copy" in str(app.AsyncResult("mine").result)

    def test_never_stores_its_retry_over_an_outcome_that_is_there_already(
        self, task, in_worker, occupy, app, sent
    ):
        """A message that was published twice: no broker flags the second."""
        app.backend.store_result("mine", ValueError("of the first"), "FAILURE")
        occupy("job:k")
        outcome = in_worker(task(), "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert outcome.state == "RETRY"
        assert "of the first" in str(app.AsyncResult("mine").result)
        assert len(sent) == 1

    def test_never_has_its_retry_stored_by_a_tracer_that_does_not_ask_the_request(
        self, task, in_worker, occupy, app
    ):
        """Celery's before 5.6.3; and any where failures are stored although results are not."""

        def run_at_once(headers, **_):
            app.backend.store_result(headers["id"], ValueError("of the copy"), "FAILURE")

        class Tracer(FencedTask):
            abstract = True

            def on_retry(self, exc, task_id, *_):
                self.backend.mark_as_retry(task_id, exc, request=self.request)

        occupy("job:k")
        after_task_publish.connect(run_at_once)
        outcome = in_worker(task(base=Tracer), "k", id="mine")
        after_task_publish.disconnect(run_at_once)

        assert outcome.state == "RETRY"
        assert "of the copy" in str(app.AsyncResult("mine").result)

    def test_is_sent_also_when_its_state_cannot_be_stored(
        self, task, in_worker, occupy, *, sent, app, monkeypatch, caplog
    ):
        def mark_as_retry(*_, **__):
            raise ConnectionError("no route to the backend")

        monkeypatch.setattr(app.backend, "mark_as_retry", mark_as_retry)
        occupy("job:k")

        assert in_worker(task(), "k").state == "RETRY"
        assert len(sent) == 1
        assert "couldn't be stored: no route to the backend" in caplog.text

    def test_does_not_take_along_that_its_state_is_stored_already(self, task, in_worker, occupy, sent):
        occupy("job:k")
        in_worker(task(), "k")

        assert sent[0][0]["ignore_result"] is False


class TestWhatMustRunAgain:
    """Ends that aren't remembered, or are remembered as what they are."""

    MESSAGE: ClassVar = {"id": "one", "headers": {"fence": {"delivery": "d"}}}

    def test_a_message_whose_dead_letter_could_not_be_published(
        self, task, in_worker, occupy, leases, monkeypatch
    ):
        def refused(*_, **__):
            raise Reject("the queue is declared otherwise", requeue=True)

        occupy("job:k")
        monkeypatch.setattr("celery_fence.task.outcomes.dead_letter", refused)
        fenced = task(miss_policy="dead_letter", acks_late=True)
        assert in_worker(fenced, "k", **self.MESSAGE).state == "REJECTED"
        process_heartbeat().flush(5)

        copy = leases.acquire(Claim("job:k", "a copy", 30.0, delivery="the task|one|0|0.d"))
        assert (copy.ending.how, copy.noted) == ("dead_lettered", False)  # so the copy decides again

    def test_a_message_that_came_round_through_a_dead_letter_exchange(self, task, in_worker):
        def rejects_once(self):
            if not (self.request.headers or {}).get("x-death"):
                raise Reject("later", requeue=False)

        fenced = task(rejects_once)
        in_worker(fenced, "k", **self.MESSAGE)
        process_heartbeat().flush(5)
        came_round = {
            **self.MESSAGE["headers"],
            "x-death": [{"count": 1, "reason": "rejected", "queue": "q"}],
        }

        assert in_worker(fenced, "k", id="one", headers=came_round).state == "SUCCESS"

    @pytest.mark.parametrize("queue", ["celery_delayed_1", "mine_celery_delayed_27"])
    def test_but_not_one_that_only_waited_in_celerys_delay_queues(self, task, in_worker, queue):
        """There a put-off copy of a running message comes back, and has to be known as one."""
        fenced = task()
        in_worker(fenced, "k", **self.MESSAGE)
        process_heartbeat().flush(5)
        delayed = {**self.MESSAGE["headers"], "x-death": [{"count": 1, "reason": "expired", "queue": queue}]}

        assert in_worker(fenced, "k", id="one", headers=delayed).state == "IGNORED"
        assert len(task.tokens) == 1

    def test_several_messages_under_one_id_from_a_hook_of_the_task(self, app, task, in_worker):
        class Sends(FencedTask):
            abstract = True

            def on_success(self, *_):
                for number in range(3):
                    child.apply_async((number,), task_id="child")

        @app.task(base=FencedTask, lock_key="c:<n>", name="child")
        def child(n):
            return n

        in_worker(task(base=Sends), "k", **self.MESSAGE)
        with app.connection_for_read() as connection:
            queue = connection.SimpleQueue(app.conf.task_default_queue)
            deliveries = {queue.get(timeout=5).headers["fence"]["delivery"] for _ in range(3)}

        assert len(deliveries) == 3
