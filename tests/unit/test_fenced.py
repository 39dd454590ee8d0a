"""One execution of a fenced task, run as a pool does but in this process."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest
from celery import Celery
from celery.exceptions import Reject
from celery.signals import after_task_publish
from kombu import Exchange, Queue

from celery_fence import (
    ConfigError,
    Contended,
    DeadLettered,
    FencedTask,
    LeaseLost,
    StoreUnavailable,
    current_lease,
    hold,
    is_skipped,
    policies,
    signals,
)
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.null_lease import NullLease
from celery_fence.locking.store import Claim, Granted, Held
from celery_fence.stores.memory import MemoryStore
from celery_fence.task.notes import Notes, Route


@pytest.fixture
def task(app):
    """A fenced task on ``job:<key>``, its options as asked for; *does* is called in its body."""

    def make(does=lambda self: None, *, name="the task", base=FencedTask, **options):
        @app.task(base=base, bind=True, lock_key="job:<key>", name=name, **options)
        def body(self, key, *, fencing_token):
            make.tokens.append(fencing_token)
            return does(self)

        return body

    make.tokens = []
    return make


@pytest.fixture
def away(monkeypatch):
    """The store is out of reach."""

    def acquire(self, *_):
        raise StoreUnavailable("no route to the store")

    monkeypatch.setattr(MemoryStore, "acquire", acquire)


class TestTheToken:
    def test_is_that_of_the_lease_of_this_execution(self, task, in_worker, leases):
        def same(self):
            holder = leases.holder("job:k")
            return [
                self.lease.token == current_lease().token == holder.token,
                holder.facts.task_id == self.request.id,
            ]

        assert in_worker(task(same), "k").value == [True, True]

    def test_grows_from_run_to_run(self, task, in_worker):
        body = task()
        for _ in range(3):
            in_worker(body, "k")

        assert task.tokens == sorted(set(task.tokens))

    def test_is_in_no_message_that_the_body_retries(self, task, in_worker, sent, leases):
        body = task(lambda self: self.retry(countdown=0))
        outcome = in_worker(body, "k")

        assert outcome.state == "RETRY"
        ((headers, message),) = sent
        assert "fencing_token" not in json.dumps([headers, message], default=repr)
        assert leases.holder("job:k") is None

    def test_is_not_in_the_arguments_that_hooks_and_requests_show(self, task, in_worker):
        seen = []

        class Looks(FencedTask):
            abstract = True

            def after_return(self, status, retval, task_id, args, kwargs, einfo):  # noqa: PLR0917
                seen.append(kwargs)

        in_worker(task(lambda self: seen.append(dict(self.request.kwargs)), base=Looks), "k")

        assert seen == [{}, {}]

    def test_is_not_in_the_request_of_an_eager_run_and_its_retry_warns_of_nothing(self, task, caplog):
        def retries_once(self):
            if self.request.retries == 0:
                raise self.retry(countdown=0)
            return dict(self.request.kwargs)

        assert task(retries_once).apply(("k",)).get() == {}
        assert "fencing_token" not in caplog.text

    def test_that_a_message_forges_is_replaced_and_warned_about(self, task, in_worker, caplog):
        in_worker(task(), "k", kwargs={"fencing_token": 999_999})

        assert task.tokens != [999_999]
        assert [record.levelname for record in caplog.records if "fencing_token" in record.getMessage()] == [
            "WARNING"
        ]

    def test_that_a_message_forges_does_not_travel_on_with_a_retry(self, task, in_worker, sent):
        in_worker(task(lambda self: self.retry(countdown=0)), "k", kwargs={"fencing_token": 999_999})

        assert "fencing_token" not in json.dumps(sent, default=repr)

    def test_that_is_forged_in_an_eager_call_is_replaced_too(self, task):
        task().apply(("k",), {"fencing_token": 999_999})

        assert task.tokens != [999_999]

    def test_that_is_given_in_a_direct_call_is_replaced_too(self, task):
        task()("k", fencing_token=999_999)

        assert task.tokens != [999_999]

    def test_has_another_name_where_the_task_says_so_also_in_bare_keywords(self, app, in_worker):
        @app.task(base=FencedTask, lock_key="k", inject_as="epoch", name="renamed")
        def renamed(**kwargs):
            return sorted(kwargs)

        assert in_worker(renamed).value == ["epoch"]

    def test_is_not_injected_where_nobody_asked_for_it(self, app, in_worker):
        @app.task(base=FencedTask, lock_key="k", name="bare")
        def bare(**kwargs):
            return kwargs

        assert in_worker(bare).value == {}


class TestTheLease:
    @pytest.mark.parametrize("end", ["return", "raise", "retry"])
    def test_is_given_back_at_every_end(self, task, in_worker, leases, end):
        def ends(self):
            assert leases.holder("job:k")
            if end == "raise":
                raise ValueError("the body's")
            if end == "retry":
                raise self.retry(countdown=0)

        in_worker(task(ends), "k")

        assert leases.holder("job:k") is None

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_is_given_back_at_ends_that_are_no_exception(self, task, in_worker, leases, error):
        def ends(self):
            raise error

        with pytest.raises(error):
            in_worker(task(ends), "k")
        assert leases.holder("job:k") is None

    def test_is_given_back_before_the_next_step_of_a_chain_is_sent(self, app, task, in_worker, leases):
        free = []
        from celery.signals import before_task_publish

        def note(**_):
            free.append(leases.holder("job:k") is None)

        body = task()
        before_task_publish.connect(note)
        following = dict(body.si("k"))
        in_worker(body, "k", chain=[following])
        before_task_publish.disconnect(note)

        assert free == [True]

    def test_of_a_body_is_none_outside_of_it(self, task, in_worker):
        body = task()
        in_worker(body, "k")

        assert body.lease is None
        assert current_lease() is None

    def test_may_be_handed_to_a_thread(self, task, in_worker):
        seen = []

        def hands_over(self):
            lease = self.lease
            thread = threading.Thread(
                target=lambda: seen.append((lease.check(), lease.token, current_lease()))
            )
            thread.start()
            thread.join(5)

        in_worker(task(hands_over), "k")

        assert seen == [(None, task.tokens[0], None)]

    def test_holder_can_be_asked_for(self, task, occupy):
        body = task()
        assert body.lease_holder("k") is None
        occupy("job:k", task_id="theirs")

        assert body.lease_holder("k").facts.task_id == "theirs"
        assert body.lease_holder(key="k").owner == "somebody else"

    def test_of_an_execution_has_an_owner_of_its_own_or_the_one_it_was_handed(self, task, in_worker):
        owners = []
        body = task(lambda self: owners.append(self.lease.owner))
        in_worker(body, "k", id="same")
        in_worker(body, "k", id="same")
        in_worker(body, "k", fence_run={"owner": "made by the parent"})

        assert owners[0] != owners[1]
        assert owners[2] == "made by the parent"


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


class TestEager:
    def test_skip_gives_success_and_the_record(self, task, occupy):
        occupy("job:k")
        result = task(miss_policy="skip").apply(("k",))

        assert (result.state, is_skipped(result.get())) == ("SUCCESS", True)
        assert task.tokens == []

    def test_skip_with_a_result_of_its_own_gives_that(self, task, occupy):
        occupy("job:k")
        policy = policies.Skip(result=lambda arguments: f"not {arguments['key']}")

        assert task(miss_policy=policy).apply(("k",)).get() == "not k"

    @pytest.mark.parametrize("policy", ["retry", "requeue", "raise"])
    def test_a_miss_ends_at_once_with_contended(self, task, occupy, policy, sent):
        occupy("job:k")
        result = task(miss_policy=policy).apply(("k",))

        assert (result.state, type(result.result)) == ("FAILURE", Contended)
        assert sent == []

    def test_a_dead_letter_fails_with_its_error_and_publishes_nothing(self, task, occupy, sent):
        occupy("job:k")
        result = task(miss_policy="dead_letter").apply(("k",))

        assert (result.state, type(result.result)) == ("FAILURE", DeadLettered)
        assert sent == []

    def test_always_eager_is_the_same(self, app, task, occupy):
        app.conf.task_always_eager = True
        occupy("job:held")
        body = task(miss_policy="skip")

        assert is_skipped(body.delay("held").get())
        assert not is_skipped(body.delay("free").get())

    def test_the_result_of_a_plain_run_is_celerys(self, task):
        result = task(lambda self: {"celery_fence": "not a skip"}).apply(("k",))

        assert result.get() == {"celery_fence": "not a skip"}
        assert not is_skipped(result.get())

    def test_the_users_own_retries_still_work(self, task, leases):
        def fails_once(self):
            if self.request.retries == 0:
                raise self.retry(countdown=0)
            return self.request.retries

        assert task(fails_once, max_retries=2).apply(("k",)).get() == 1
        assert len(set(task.tokens)) == 2
        assert leases.holder("job:k") is None


class TestNested:
    def test_calls_on_the_same_key_share_the_lease(self, task, in_worker, leases):
        held = []

        def nests(self):
            if len(task.tokens) < 3:
                self("k")
                held.append(leases.holder("job:k") is not None)

        in_worker(task(nests), "k")

        assert len(task.tokens) == 3
        assert len(set(task.tokens)) == 1
        assert held == [True, True]
        assert leases.holder("job:k") is None

    def test_calls_on_another_key_have_their_own(self, task, in_worker, leases):
        def nests(self):
            before = self.lease.key
            if before == "job:outer":
                self("inner")
            return [before, self.lease.key]

        assert in_worker(task(nests), "outer").value == ["job:outer", "job:outer"]
        assert len(set(task.tokens)) == 2

    def test_a_key_held_by_another_makes_a_nested_call_a_miss_of_the_outer_task(
        self, task, in_worker, occupy
    ):
        occupy("job:inner")
        outcome = in_worker(task(lambda self: self("inner"), miss_policy="raise"), "outer")

        assert isinstance(outcome.value, Contended)
        assert outcome.value.key == "job:inner"

    def test_an_eager_call_inside_is_its_own_run(self, task, in_worker):
        inner = task(name="inner")
        outcome = in_worker(task(lambda self: inner.apply(("other",)).state, name="outer"), "k")

        assert outcome.value == "SUCCESS"
        assert len(set(task.tokens)) == 2


class TestALoss:
    def lose(self, reason="taken"):
        def loses(lease_holder):
            lease = current_lease()
            lease.lose(reason)
            lease.check()

        return loses

    def test_with_raise_fails_with_lease_lost(self, task, in_worker):
        outcome = in_worker(task(self.lose(), lost_policy="raise"), "k")

        assert (outcome.state, type(outcome.value)) == ("FAILURE", LeaseLost)
        assert (outcome.value.key, outcome.value.token) == ("job:k", task.tokens[0])

    def test_with_retry_sends_the_message_again_as_the_same_delivery(self, task, in_worker, sent):
        outcome = in_worker(task(self.lose()), "k", headers={"fence": {"delivery": "d"}})

        assert outcome.state == "RETRY"
        ((headers, _),) = sent
        assert Notes.read(headers) == Notes(delivery="d", losses=1)
        assert headers["retries"] == 0

    def test_over_and_over_fails_at_last(self, task, in_worker, sent):
        outcome = in_worker(task(self.lose()), "k", headers={"fence": {"losses": 5}})

        assert (outcome.state, type(outcome.value)) == ("FAILURE", LeaseLost)
        assert sent == []

    def test_in_eager_mode_fails_at_once(self, task, sent):
        assert isinstance(task(self.lose()).apply(("k",)).result, LeaseLost)
        assert sent == []

    def test_that_the_body_ignores_keeps_its_result(self, task, in_worker):
        def ignores(self):
            self.lease.lose("taken")
            return ["finished", self.lease.lost]

        assert in_worker(task(ignores, lost_policy="flag"), "k").value == ["finished", True]

    def test_before_the_body_fails_on_its_own_leaves_the_body_s_error_as_it_is(self, task, in_worker):
        """Not an error about the release, with the one that counts as its context."""

        def fails(self):
            self.lease.lose("taken")
            raise ValueError("the body's own")

        outcome = in_worker(task(fails, lost_policy="flag"), "k")

        assert (outcome.state, type(outcome.value), outcome.value.args) == (
            "FAILURE",
            ValueError,
            ("the body's own",),
        )
        assert outcome.value.__cause__ is outcome.value.__context__ is None

    def test_is_told_to_the_hook_once(self, task, in_worker):
        told = []

        class Hooked(FencedTask):
            abstract = True

            def on_lease_lost(self, lease):
                told.append((lease.key, lease.lost))

        in_worker(task(self.lose(), base=Hooked), "k")

        assert told == [("job:k", True)]

    def test_whose_hook_raises_is_a_loss_all_the_same(self, task, in_worker, caplog):
        class Broken(FencedTask):
            abstract = True

            def on_lease_lost(self, lease):
                raise RuntimeError("the hook")

        assert in_worker(task(self.lose(), base=Broken, lost_policy="raise"), "k").state == "FAILURE"
        assert "on_lease_lost of task the task failed" in caplog.text

    def test_comes_back_without_hiding_what_a_copy_has_stored_meanwhile(self, task, in_worker, app, sent):
        def lost_late(self_):
            app.backend.store_result("mine", ValueError("of the copy"), "FAILURE")
            return self.lose()(self_)

        assert in_worker(task(lost_late), "k", id="mine").state == "RETRY"
        assert "of the copy" in str(app.AsyncResult("mine").result)
        assert len(sent) == 1

    @pytest.mark.parametrize(
        ("options", "losses"), [({"lost_policy": "raise"}, 0), ({"lost_policy": "retry"}, 5)]
    )
    def test_that_is_final_is_remembered_before_a_copy_can_take_the_key(
        self, task, in_worker, leases, options, losses
    ):
        """A copy that comes between the release and the failure's note would run the body again."""
        copies = []

        @signals.lease_released.connect
        def ask(key, lease, **_):
            copies.append(leases.acquire(replace(lease.claim, owner="the copy")))

        headers = {"fence": {"delivery": "d", "losses": losses}}
        outcome = in_worker(task(self.lose(), **options), "k", headers=headers)

        assert outcome.state == "FAILURE"
        assert [copy.ending.how for copy in copies] == ["failed"]

    def test_that_comes_back_is_no_end(self, task, in_worker, leases):
        outcome = in_worker(task(self.lose()), "k", id="mine", headers={"fence": {"delivery": "d"}})
        again = Claim("job:k", "again", 9.0, delivery="the task|mine|0|0.d")

        assert outcome.state == "RETRY"
        assert isinstance(leases.acquire(again), Granted)

    def test_to_a_copy_of_this_very_message_stores_nothing(self, task, in_worker, app, leases, occupy):
        def taken_over(self):
            holder = leases.holder("job:k")
            leases.force_release("job:k")
            occupy(
                "job:k",
                owner="the copy",
                task_name="the task",
                task_id="mine",
                delivery=holder.facts.delivery,
            )
            return "my result"

        outcome = in_worker(task(taken_over), "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert outcome.state == "IGNORED"
        assert app.AsyncResult("mine").state == "PENDING"
        assert leases.holder("job:k").owner == "the copy"


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


class TestAnOutage:
    def test_with_retry_comes_back_later_with_a_count_of_its_own(self, task, in_worker, away, sent):
        outcome = in_worker(task(miss_policy="skip"), "k")

        assert outcome.state == "RETRY"
        found = Notes.read(sent[0][0])
        assert (found.outages.total, found.misses.total) == (1, 0)
        assert task.tokens == []

    def test_with_raise_fails(self, task, in_worker, away):
        outcome = in_worker(task(outage_policy="raise"), "k")

        assert (outcome.state, type(outcome.value)) == ("FAILURE", StoreUnavailable)

    def test_with_run_runs_without_a_lease_and_says_so(self, task, in_worker, away, caplog):
        def looks(self):
            self.lease.check()
            return [type(self.lease) is NullLease, self.lease.token, current_lease().token]

        assert in_worker(task(looks, outage_policy="run"), "k").value == [True, None, None]
        assert task.tokens == [None]
        assert "runs WITHOUT a lease on 'job:k'" in caplog.text

    @pytest.mark.parametrize("policy", ["retry", "raise"])
    def test_says_nothing_about_a_copy_whose_original_may_be_about_to_end(
        self, task, in_worker, away, *, sent, app, policy
    ):
        outcome = in_worker(
            task(outage_policy=policy),
            "k",
            id="mine",
            headers={"fence": {"delivery": "d"}},
            delivery_info={"exchange": "", "routing_key": app.conf.task_default_queue, "redelivered": True},
        )

        assert outcome.state == "IGNORED"
        assert app.AsyncResult("mine").state == "PENDING"
        assert [Notes.read(headers).delivery for headers, _ in sent] == ["d"]

    def test_says_nothing_more_about_a_message_that_has_ended(self, task, in_worker, away, sent, app):
        """A client whose publish was confirmed late sends the same message twice: no broker flags that."""
        app.backend.store_result("mine", ValueError("of the other"), "FAILURE")
        outcome = in_worker(task(), "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert outcome.state == "IGNORED"
        assert "of the other" in str(app.AsyncResult("mine").result)
        assert len(sent) == 1

    def test_with_a_backend_that_is_away_too_loses_nothing(
        self, task, in_worker, away, *, sent, app, monkeypatch
    ):
        asked = []

        def get_state(task_id):
            raise ConnectionError("no route to the backend")

        monkeypatch.setattr(app.backend, "get_state", get_state)
        monkeypatch.setattr(app.backend, "mark_as_retry", lambda *a, **k: asked.append(a))

        assert in_worker(task(), "k").state == "RETRY"
        assert len(sent) == 1
        assert asked == []  # each call may wait long for a backend that isn't there

    def test_in_eager_mode_ends_at_once(self, task, away, sent):
        assert isinstance(task().apply(("k",)).result, StoreUnavailable)
        assert sent == []

    def test_at_the_release_keeps_the_result(self, task, in_worker, monkeypatch):
        def release(self, *_):
            raise StoreUnavailable("no route to the store")

        monkeypatch.setattr(MemoryStore, "release", release)

        assert in_worker(task(lambda self: "done"), "k").value == "done"


def test_two_apps_in_one_process_share_neither_leases_nor_settings(task, in_worker, occupy, app):
    other = Celery("other", set_as_current=False, broker="memory://", backend="cache+memory://")
    other.conf.update(fence_url="memory://another-place", fence_ttl=5.0)

    @other.task(base=FencedTask, bind=True, lock_key="job:<key>", shared=False, name="the task")
    def theirs(self, key):
        return self.lease.ttl

    occupy("job:k")

    assert theirs.apply(("k",)).get() == 5.0
    assert isinstance(task(miss_policy="raise").apply(("k",)).result, Contended)
    with hold("job:k", app=other) as lease:
        assert lease.ttl == 5.0
    other.close()


def test_a_thousand_keys_at_once_in_threads_have_a_lease_each(task, app, leases):
    """What executions share is the task; nothing of one shows in another."""
    body = task(lambda self: (self.lease.key, self.lease.token))
    results = []

    def run(number):
        results.extend(body.apply((f"{number}-{each}",)).get() for each in range(25))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert Counter(key for key, _ in results) == Counter(f"job:{n}-{e}" for n in range(8) for e in range(25))
    assert sorted(token for _, token in results) == sorted(task.tokens)
    assert list(leases.leases()) == []


@pytest.mark.parametrize("place", ["option", "setting"])
def test_a_lost_delay_goes_with_the_lease(app, task, in_worker, place):
    """What a store does with it is told by the contract of stores."""
    if place == "setting":
        app.conf.fence_lost_delay = 7
    delayed = task(
        lambda self: self.lease.claim.lost_delay, **({"lock_lost_delay": 7} if place == "option" else {})
    )

    assert in_worker(delayed, "k").value == 7


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


def test_a_block_of_another_apps_store_is_another_key(app, task, leases):
    other = type(app)("another", set_as_current=False, broker="memory://")
    other.conf.fence_url = f"memory://{app.main}-another"

    with hold("job:<n>", {"n": "k"}, app=other) as theirs, hold("job:<n>", {"n": "k"}, app=app) as ours:
        assert theirs is not ours
        assert leases.holder("job:k").owner == ours.owner


def test_a_broadcast_message_is_refused(app, task, in_worker):
    app.amqp.queues.add(Queue("one of many", Exchange("to all", type="fanout")))
    outcome = in_worker(task(), "k", delivery_info={"exchange": "to all", "routing_key": ""})

    assert outcome.state == "FAILURE"
    assert isinstance(outcome.value, ConfigError)
    assert "'to all'" in str(outcome.value)
