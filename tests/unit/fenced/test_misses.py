"""A run whose key is held ends as its policy says, and touches nobody's lease."""

from __future__ import annotations

import logging

import pytest

from celery_fence import Contended, DeadLettered, FencedTask, hold, is_skipped, policies, signals
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.store import Claim, Held
from celery_fence.task.notes import Notes, Route


class TestAMiss:
    @pytest.mark.parametrize(
        "policy, state, error",
        [
            ("retry", "RETRY", None),
            ("requeue", "RETRY", None),
            ("raise", "FAILURE", Contended),
            ("dead_letter", "FAILURE", DeadLettered),
        ],
    )
    def test_runs_nothing_and_touches_nobodys_lease(  # noqa: PLR0917 - fixtures
        self, task, in_worker, occupy, leases, policy, state, error
    ):
        occupy("job:k")
        outcome = in_worker(task(miss_policy=policy), "k")

        assert task.tokens == []
        assert outcome.state == state
        assert error is None or isinstance(outcome.value, error)
        assert leases.holder("job:k").owner == "somebody else"

    def test_is_counted_apart_from_the_users_retries(self, task, in_worker, occupy, sent):
        occupy("job:k")
        in_worker(task(max_retries=1), "k", retries=1, headers={"x-tenant": "7"})

        headers, _ = sent[0]
        assert headers["retries"] == 1
        assert headers["fence"]["misses"]["total"] == 1
        assert headers["x-tenant"] == "7"

    def test_counts_on_from_what_the_message_says(self, task, in_worker, occupy, sent):
        notes = Notes(delivery="the delivery")
        for _ in range(3):
            notes = notes.missed(0, notes.misses.attempt + 1, 1.7e9, Route(queue="q"))
        occupy("job:k")
        in_worker(task(miss_policy=policies.Retry(max_delay=5)), "k", headers={"fence": notes.header()})

        found = Notes.read(sent[0][0])
        assert (found.misses.total, found.misses.attempt, found.misses.first) == (4, 4, 1.7e9)
        assert found.delivery == "the delivery"

    def test_is_forgotten_once_the_lease_is_taken(self, task, in_worker, sent):
        notes = (
            Notes(delivery="old").missed(0, 1, 1.7e9, Route()).outage(0, 1, 1.7e9, Route()).put_off_again()
        )
        seen = []

        def retries(self):
            seen.append(Notes.read(self.request.headers))
            self.retry(countdown=0)

        in_worker(task(retries), "k", headers={"fence": notes.header(), "x-tenant": "7"})

        headers, _ = sent[0]
        assert seen == [Notes(delivery="old")]
        found = Notes.read(headers)
        assert found == Notes(delivery=found.delivery)
        assert found.delivery not in ("", "old")
        assert headers["x-tenant"] == "7"

    def test_says_nothing_at_warning_or_above_and_sends_its_signal(self, task, in_worker, occupy, caplog):
        missed = []

        def hears(sender, key, holder, outcome, attempt, **_):
            missed.append((sender.name, key, holder.owner, outcome, attempt))

        occupy("job:k")
        signals.lease_missed.connect(hears)
        with caplog.at_level("DEBUG", "celery_fence"):
            for policy in ("retry", "requeue", "skip"):
                in_worker(task(miss_policy=policy, name=policy), "k")
        signals.lease_missed.disconnect(hears)

        assert missed == [
            (policy, "job:k", "somebody else", policy, 1) for policy in ("retry", "requeue", "skip")
        ]
        ours = [record for record in caplog.records if record.name.startswith("celery_fence")]
        assert ours
        assert [record for record in ours if record.levelno >= logging.WARNING] == []

    def test_is_told_to_the_hook_before_its_policy(self, task, in_worker, occupy, sent):
        told = []

        class Hooked(FencedTask):
            abstract = True

            def on_miss(self, miss, args, kwargs):
                told.append((miss.key, miss.holder.owner, tuple(args), kwargs, len(sent)))

        occupy("job:k")
        in_worker(task(base=Hooked), "k")

        assert told == [("job:k", "somebody else", ("k",), {}, 0)]
        assert len(sent) == 1

    def test_whose_hook_raises_is_carried_out_all_the_same(self, task, in_worker, occupy, sent, caplog):
        class Broken(FencedTask):
            abstract = True

            def on_miss(self, miss, args, kwargs):
                raise RuntimeError("the hook")

        occupy("job:k")
        assert in_worker(task(base=Broken), "k").state == "RETRY"
        assert len(sent) == 1
        assert "on_miss of task the task failed" in caplog.text

    def test_that_is_skipped_is_stored_as_success_with_its_record(self, task, in_worker, occupy, app):
        occupy("job:k", task_name="their task", task_id="their id", host="web-1")
        outcome = in_worker(task(miss_policy="skip"), "k", id="mine")

        assert outcome.state == "IGNORED"
        result = app.AsyncResult("mine")
        assert (result.state, is_skipped(result.get())) == ("SUCCESS", True)
        record = result.get()
        assert (record["key"], record["holder_task_id"], record["reason"]) == ("job:k", "their id", "held")
        assert all(isinstance(value, str) for value in record.values())

    def test_of_a_retry_is_never_skipped(self, task, in_worker, occupy, sent):
        occupy("job:k")
        assert in_worker(task(miss_policy="skip"), "k", retries=1).state == "RETRY"
        assert len(sent) == 1

    def test_of_a_copy_of_the_running_message_is_put_off_and_nothing_is_stored(
        self, task, in_worker, occupy, sent, app
    ):
        occupy("job:k", task_name="the task", task_id="mine", delivery="0.d")
        outcome = in_worker(task(miss_policy="skip"), "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert outcome.state == "IGNORED"
        assert Notes.read(sent[0][0]) == Notes(delivery="d", put_offs=1)
        assert app.AsyncResult("mine").state == "PENDING"

    @pytest.mark.parametrize("policy", ["retry", "skip", "dead_letter", "raise"])
    @pytest.mark.parametrize("headers", [{"delivery": "d"}, {"delivery": "d", "put_offs": 1}])
    def test_of_a_copy_that_has_an_outcome_the_store_has_not_heard_of_says_nothing(  # noqa: PLR0917 - fixtures
        self, task, in_worker, occupy, app, sent, leases, policy, headers
    ):
        """Its run lost its lease while the store was away: how it ended is noted only when that is back."""
        app.backend.store_result("mine", ValueError("of the run"), "FAILURE")
        occupy("job:k", task_id="another")
        marked = "put_offs" not in headers
        info = {"exchange": "", "routing_key": app.conf.task_default_queue, "redelivered": marked}
        outcome = in_worker(
            task(miss_policy=policy), "k", id="mine", headers={"fence": headers}, delivery_info=info
        )
        asked = leases.acquire(Claim("job:k", "who asks", 9.0, delivery="the task|mine|0|0.d"))

        assert outcome.state == "IGNORED"
        assert "of the run" in str(app.AsyncResult("mine").result)
        assert [Notes.read(headers).delivery for headers, _ in sent] == ["d"]
        assert isinstance(asked, Held)

    def test_of_the_same_task_id_sent_twice_on_purpose_is_a_miss(self, task, in_worker, occupy, app):
        occupy("job:k", task_name="the task", task_id="mine", delivery="0.other")
        in_worker(task(miss_policy="skip"), "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert is_skipped(app.AsyncResult("mine").get())

    @pytest.mark.parametrize("redelivered, state", [(True, "PENDING"), (False, "SUCCESS")])
    def test_without_a_delivery_id_is_a_copy_only_if_the_broker_says_so(  # noqa: PLR0917 - fixtures
        self, task, in_worker, occupy, app, redelivered, state
    ):
        occupy("job:k", task_name="the task", task_id="mine", delivery="0.")
        info = {"exchange": "", "routing_key": app.conf.task_default_queue, "redelivered": redelivered}
        in_worker(task(miss_policy="skip"), "k", id="mine", delivery_info=info)

        assert app.AsyncResult("mine").state == state

    def test_of_a_retry_that_overtook_its_predecessor_is_put_off(self, task, in_worker, occupy, sent):
        occupy("job:k", task_name="the task", task_id="mine", retries=0, delivery="0.first")
        outcome = in_worker(
            task(miss_policy="raise"), "k", id="mine", retries=1, headers={"fence": {"delivery": "d"}}
        )

        assert outcome.state == "IGNORED"
        assert sent[0][0]["retries"] == 1


def test_a_miss_in_the_body_is_remembered_for_the_runs_own_key(task, in_worker, occupy, sent):
    """So that a copy, which asks for that key, finds it."""

    def meets_another(self):
        with hold("other:<n>", {"n": 1}):
            pass

    occupy("other:1")
    fenced = task(meets_another, miss_policy="raise")
    message = {"id": "one", "headers": {"fence": {"delivery": "d"}}}
    first = in_worker(fenced, "k", **message)
    process_heartbeat().flush(5)

    assert (type(first.value), first.value.key) == (Contended, "other:1")
    assert in_worker(fenced, "k", **message).state == "IGNORED"
    assert len(task.tokens) == 1
