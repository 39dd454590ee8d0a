"""`idempotency_key`: work that was done is answered from its record, in one process."""

from __future__ import annotations

import logging
import pickle
import uuid

import pytest
from celery import states
from celery.exceptions import Ignore, Reject
from celery.signals import before_task_publish

from celery_fence import ConfigError, Contended, FencedTask, hold, signals
from celery_fence.errors import AlreadyDone, ClaimMismatch, StoreUnavailable
from celery_fence.locking import current
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim, Ending, Facts
from celery_fence.stores.memory import MemoryStore
from celery_fence.task.endings import LARGEST_RESULT
from celery_fence.task.notes import Notes
from celery_fence.task.skip import Skipped

DELIVERED = {"fence": Notes(delivery="d").header()}


@pytest.fixture
def charge(app):
    """A task on ``tenant:<tenant>`` for ``order:<order>``; what it *does* is its result."""

    def make(does=lambda self: {"charged": 5}, *, name="charge", **options):
        given = {
            "base": FencedTask,
            "lock_key": "tenant:<tenant>",
            "idempotency_key": "order:<order>",
            **options,
        }

        @app.task(bind=True, name=name, **given)
        def charge(self, tenant, order):
            make.runs.append((self.request.id, self.record_key))
            return does(self)

        return charge

    make.runs = []
    return make


@pytest.fixture
def stored(app):
    """The state and result of a message, as the result backend has them."""
    return lambda task_id: (app.AsyncResult(task_id).state, app.AsyncResult(task_id).result)


@pytest.fixture
def skips():
    told = []

    def note(sender, **facts):
        told.append((sender.name, facts))

    signals.task_skipped.connect(note)
    yield told
    signals.task_skipped.disconnect(note)


def raises(error):
    raise error


def self_found(task, **given):
    raise AlreadyDone("in the database", record=task.record_key, **given)


def given_back(result):
    return result


def nothing(): ...


class TestWorkThatWasDone:
    def test_isn_t_done_again_and_its_result_is_this_messages_too(self, charge, in_worker, stored):
        task, second = charge(), uuid.uuid4().hex
        first = in_worker(task, 7, 1)

        outcome = in_worker(task, 7, 1, id=second)

        assert first.value == {"charged": 5}
        assert isinstance(outcome.value, Skipped)
        assert stored(second) == ("SUCCESS", {"charged": 5})
        assert len(charge.runs) == 1

    def test_says_so_in_its_event_and_in_the_log(self, charge, in_worker, skips, caplog):
        task = charge()
        in_worker(task, 7, 1)
        caplog.set_level(logging.INFO, "celery_fence")
        skipped = in_worker(task, 7, 1, id="the second").value

        (told,) = skips
        assert told[0] == "charge"
        assert (told[1]["reason"], told[1]["record"], told[1]["task_id"], told[1]["key"]) == (
            "already_done",
            {"charged": 5},
            "the second",
            "tenant:7",
        )
        assert skipped.reason == "already_done: order:1"
        (line,) = [record for record in caplog.records if "done before" in record.getMessage()]
        assert (line.levelname, line.task_id) == ("INFO", "the second")

    def test_is_known_by_its_idempotency_key_however_the_call_is_written(self, charge, in_worker):
        task = charge()
        in_worker(task, 7, 1)
        for args, kwargs in [((7,), {"order": 1}), ((), {"tenant": 7, "order": "1"})]:
            in_worker(task, *args, kwargs=kwargs)

        assert len(charge.runs) == 1

    def test_of_another_key_is_done(self, charge, in_worker):
        """I03: one key for the lock, one for the record."""
        task = charge()
        for order in (1, 2, 1):
            in_worker(task, 7, order)

        assert [key for _, key in charge.runs] == ["order:1", "order:2"]

    def test_is_answered_while_other_work_has_the_lock_key(self, charge, in_worker, occupy, stored):
        task = charge(miss_policy="raise")
        in_worker(task, 7, 1)
        occupy("tenant:7")
        in_worker(task, 7, 1, id="again")

        assert stored("again") == ("SUCCESS", {"charged": 5})
        assert isinstance(in_worker(task, 7, 2).value, Contended)

    def test_in_another_task_with_the_same_key_is_done(self, charge, in_worker):
        in_worker(charge(), 7, 1)
        in_worker(charge(name="another"), 7, 1)

        assert len(charge.runs) == 1

    @pytest.mark.parametrize("result", [None, False, 0, "", [], {"celery_fence": "skipped"}, "größe", 1.5])
    def test_has_the_same_result_whatever_it_is(self, charge, in_worker, stored, result):
        task = charge(lambda self: result)
        for task_id in ("first", "again"):
            in_worker(task, 7, 1, id=task_id)

        assert stored("again") == ("SUCCESS", result)

    def test_keeps_its_type_with_the_serializer_of_results(self, app, charge, in_worker, stored):
        app.conf.update(result_serializer="pickle", accept_content=["json", "pickle"])
        task = charge(lambda self: {1, 2})
        for task_id in ("first", "again"):
            in_worker(task, 7, 1, id=task_id)

        assert stored("again") == ("SUCCESS", {1, 2})

    def test_costs_the_path_no_note(self, charge, in_worker, monkeypatch):
        """The record remembers it until its epilogue is noted, in the background."""
        noted = []
        monkeypatch.setattr(Locker, "note_now", lambda self, note: noted.append(note))
        task = charge()
        for _ in range(2):
            in_worker(task, 7, 1, headers=DELIVERED)

        assert noted == []
        assert len(charge.runs) == 1

    def test_is_remembered_no_longer_than_the_setting_says(self, app, charge, in_worker, leases):
        app.conf.fence_record_retention = 3000
        in_worker(charge(), 7, 1)

        assert 2900 < leases.record("order:1").left <= 3000

    def test_is_done_again_once_its_record_was_deleted(self, charge, in_worker, leases):
        task = charge()
        in_worker(task, 7, 1)
        leases.delete_record("order:1")
        in_worker(task, 7, 1)

        assert len(charge.runs) == 2

    def test_runs_no_success_hook_for_the_message_that_is_answered(self, charge, in_worker):
        calls = []

        class Told(FencedTask):
            abstract = True

            def on_success(self, retval, task_id, args, kwargs):
                calls.append(task_id)

        task = charge(base=Told)
        for task_id in ("first", "again"):
            in_worker(task, 7, 1, id=task_id)

        assert calls == ["first"]

    def test_sends_links_and_the_next_step_of_the_chain_with_its_result(self, app, charge, in_worker, sent):
        task = charge()
        in_worker(task, 7, 1)
        after = app.task(name="after")(given_back)
        link, step = after.s().set(task_id="link"), after.s().set(task_id="step")
        in_worker(task, 7, 1, callbacks=[dict(link)], chain=[dict(step)])

        assert {headers["id"]: body[0] for headers, body in sent} == {
            "link": ({"charged": 5},),
            "step": ({"charged": 5},),
        }


class TestARunThatDidNotReturn:
    @pytest.mark.parametrize("error", [ValueError("no"), Ignore(), Reject("no", requeue=False)])
    def test_leaves_no_record(self, charge, in_worker, leases, error):
        in_worker(charge(lambda self: raises(error)), 7, 1)

        assert leases.record("order:1") is None

    def test_and_is_retried_meets_no_claim_of_its_own(self, charge, in_worker, leases):
        task = charge(lambda self: self.retry(countdown=0) if not self.request.retries else "done")
        assert in_worker(task, 7, 1).state == "RETRY"
        assert leases.record("order:1") is None

        assert in_worker(task, 7, 1, retries=1).value == "done"

    def test_but_was_replaced_leaves_no_record(self, app, charge, in_worker, leases):
        after = app.task(name="after")(nothing)
        in_worker(charge(lambda self: self.replace(after.si())), 7, 1)

        assert leases.record("order:1") is None

    def test_because_it_missed_leaves_no_record(self, charge, in_worker, occupy, leases):
        """I05."""
        task = charge(miss_policy="skip")
        occupy("tenant:7", owner="o", ttl=60)
        in_worker(task, 7, 1)
        assert leases.record("order:1") is None

        leases.force_release("tenant:7")
        in_worker(task, 7, 1)
        assert len(charge.runs) == 1

    def test_because_its_lease_was_lost_leaves_no_record(self, charge, in_worker, leases, sent):
        def loses(self):
            self.lease.lose("taken")
            self.lease.check()

        task = charge(loses)

        assert in_worker(task, 7, 1).state == states.RETRY
        assert leases.record("order:1") is None

    def test_holds_its_claim_while_it_runs(self, charge, in_worker, leases):
        seen = []
        in_worker(charge(lambda self: seen.append(leases.record("order:1"))), 7, 1, id="me")

        (record,) = seen
        assert (record.lock_key, record.facts.task_id, record.done) == ("tenant:7", "me", None)


class TestAClaimUnderAnotherLockKey:
    @pytest.fixture
    def claimed(self, leases):
        leases.acquire(Claim("old:7", "their owner", 60.0, Facts("shop.pay", "id-1"), record="order:1"))

    def test_is_an_error_that_names_both_keys_and_what_to_do(self, charge, in_worker, claimed):
        error = in_worker(charge(), 7, 1).value

        assert isinstance(error, ClaimMismatch)
        assert (error.record, error.key, error.claimed_under) == ("order:1", "tenant:7", "old:7")
        assert "shop.pay[id-1]" in str(error)
        assert "the same lock_key" in str(error)
        assert charge.runs == []

    def test_doesn_t_close_the_key_that_was_asked_for(self, charge, in_worker, claimed, leases, monkeypatch):
        releases = []
        monkeypatch.setattr(MemoryStore, "release", lambda *given: releases.append(given))
        in_worker(charge(), 7, 1)

        assert releases == []
        assert leases.holder("tenant:7") is None
        assert leases.record("order:1").owner == "their owner"

    def test_is_taken_over_when_its_run_has_died(self, charge, in_worker, claimed, leases):
        leases.force_release("old:7")

        assert in_worker(charge(), 7, 1).value == {"charged": 5}
        assert leases.record("order:1").lock_key == "tenant:7"

    def test_is_taken_over_when_its_key_is_somebody_else_s_by_now(self, charge, in_worker, claimed, leases):
        leases.force_release("old:7")
        leases.acquire(Claim("old:7", "another", 60.0))

        assert in_worker(charge(), 7, 1).value == {"charged": 5}


class TestAResultThatCanTBeKept:
    @pytest.mark.parametrize(
        ("result", "why"), [("x" * LARGEST_RESULT, f"{LARGEST_RESULT} is the limit"), (object(), "encoded")]
    )
    def test_is_told_at_once_and_its_work_isn_t_done_again(self, charge, in_worker, caplog, result, why):
        task = charge(lambda self: result)
        in_worker(task, 7, 1)

        (line,) = [record for record in caplog.records if why in record.getMessage()]
        assert (line.levelname, "'order:1'" in line.getMessage()) == ("ERROR", True)

        error = in_worker(task, 7, 1).value
        assert isinstance(error, AlreadyDone)
        assert (error.record, error.has_result) == ("order:1", False)
        assert "such as an id" in str(error)
        assert len(charge.runs) == 1

    def test_is_the_first_message_s_result_all_the_same(self, charge, in_worker, stored):
        result = "x" * LARGEST_RESULT
        in_worker(charge(lambda self: result), 7, 1, id="first")

        assert stored("first") == ("SUCCESS", result)

    def test_is_no_failure_where_nobody_waits_for_it(self, charge, in_worker, skips):
        task = charge(lambda self: "x" * LARGEST_RESULT, ignore_result=True)
        in_worker(task, 7, 1)

        assert isinstance(in_worker(task, 7, 1).value, Skipped)
        assert [facts["reason"] for _, facts in skips] == ["already_done"]

    def test_the_largest_one_is_kept(self, charge, in_worker, leases):
        head = len(b"application/json;utf-8\n") + 2
        in_worker(charge(lambda self: "x" * (LARGEST_RESULT - head)), 7, 1)

        assert leases.record("order:1").size == LARGEST_RESULT

    def test_and_can_t_be_read_is_a_failure_that_says_so(self, app, charge, in_worker, leases):
        claim = Claim("tenant:7", "o", 60.0, record="order:1")
        leases.release(
            claim, leases.acquire(claim).token, Ending("returned", result=b"application/json;utf-8\n{")
        )

        error = in_worker(charge(), 7, 1).value
        assert isinstance(error, AlreadyDone)
        assert "can't be read" in str(error)

    def test_and_isn_t_accepted_by_the_app_is_not_decoded(self, app, charge, in_worker, leases):
        """Who can write to the store must not have the worker unpickle it."""
        bomb = b"application/x-python-serialize;binary\n" + pickle.dumps(pytest.fail)
        leases.acquire(Claim("tenant:7", "o", 60.0, record="order:1"))
        leases.release(Claim("tenant:7", "o", 60.0, record="order:1"), 0, Ending("returned", result=bomb))
        error = in_worker(charge(), 7, 1).value

        assert isinstance(error, AlreadyDone)
        assert "can't be read" in str(error)

    def test_because_the_store_is_gone_is_told_at_once(self, charge, in_worker, monkeypatch, caplog):
        monkeypatch.setattr(MemoryStore, "release", lambda *_: raises(StoreUnavailable("away")))
        in_worker(charge(), 7, 1)

        text = "'order:1' is done, but its record couldn't be written yet, and is tried again"
        told = [record.levelname for record in caplog.records if text in record.getMessage()]
        assert told == ["WARNING"]


class TestWorkThatItsBodyFindsDone:
    """As by a record in the body's own database."""

    def test_is_answered_with_the_result_that_was_found(self, charge, in_worker, stored, leases, skips):
        task = charge(lambda self: self_found(self, has_result=True, result={"charged": 9}))
        outcome = in_worker(task, 7, 1, id="found")

        assert isinstance(outcome.value, Skipped)
        assert stored("found") == ("SUCCESS", {"charged": 9})
        assert [facts["reason"] for _, facts in skips] == ["already_done"]
        assert leases.holder("tenant:7") is None

    def test_completes_the_record_of_the_lease_store(self, charge, in_worker, stored):
        task = charge(lambda self: self_found(self, has_result=True, result=9))
        for task_id in ("one", "two"):
            in_worker(task, 7, 1, id=task_id)

        assert stored("two") == ("SUCCESS", 9)
        assert len(charge.runs) == 1

    def test_without_a_result_is_a_failure_that_says_so(self, charge, in_worker):
        error = in_worker(charge(self_found), 7, 1).value

        assert isinstance(error, AlreadyDone)

    def test_about_other_work_is_an_error_like_any(self, charge, in_worker, leases):
        other = AlreadyDone("other", record="order:9", has_result=True, result=1)
        outcome = in_worker(charge(lambda self: raises(other)), 7, 1)

        assert (outcome.state, outcome.value) == ("FAILURE", other)
        assert leases.record("order:1") is None

    def test_isn_t_retried_by_autoretry(self, charge, in_worker, sent):
        task = charge(lambda self: self_found(self, has_result=True, result=9), autoretry_for=(Exception,))

        assert isinstance(in_worker(task, 7, 1).value, Skipped)
        assert sent == []

    def test_has_not_ended_until_what_follows_is_sent(self, app, charge, in_worker, leases):
        """A copy after a crash is to find the record, not a delivery that has ended."""
        ended = []
        after = app.task(name="after")(given_back)
        task = charge(lambda self: self_found(self, has_result=True, result=9))
        before_task_publish.connect(look := lambda **_: ended.append(dict(leases._space.markers)))
        in_worker(task, 7, 1, headers=DELIVERED, callbacks=[dict(after.s())])
        before_task_publish.disconnect(look)

        assert ended == [{}]

    def test_about_other_work_passes_through_a_direct_call(self, charge):
        other = AlreadyDone("other", record="order:9", has_result=True, result=1)

        with pytest.raises(AlreadyDone, match="other"):
            charge(lambda self: raises(other))(7, 1)

    def test_in_a_direct_call_is_returned(self, charge):
        assert charge(lambda self: self_found(self, has_result=True, result=9))(7, 1) == 9


class TestADirectCall:
    def test_returns_the_recorded_result_without_running(self, charge):
        task = charge()

        assert [task(7, 1), task(7, 1)] == [{"charged": 5}, {"charged": 5}]
        assert len(charge.runs) == 1

    def test_and_a_message_share_the_record(self, charge, in_worker, stored):
        task = charge()
        task(7, 1)
        in_worker(task, 7, 1, id="shared")

        assert stored("shared") == ("SUCCESS", {"charged": 5})
        assert len(charge.runs) == 1

    def test_that_fails_leaves_no_record(self, charge, leases):
        with pytest.raises(ValueError, match="no"):
            charge(lambda self: raises(ValueError("no")))(7, 1)

        assert leases.record("order:1") is None

    def test_raises_where_the_result_wasn_t_kept(self, charge):
        task = charge(lambda self: object())
        task(7, 1)

        with pytest.raises(AlreadyDone):
            task(7, 1)

    def test_has_its_key(self, charge):
        charge()(7, 1)

        assert [key for _, key in charge.runs] == ["order:1"]

    def test_under_a_mode_that_runs_without_the_store_leaves_no_record_and_runs(self, charge, monkeypatch):
        def acquire(self, *_):
            raise StoreUnavailable("no route to the store")

        monkeypatch.setattr(MemoryStore, "acquire", acquire)
        task = charge(outage_policy="run")

        assert [task(7, 1), task(7, 1)] == [{"charged": 5}] * 2
        assert [key for _, key in charge.runs] == ["order:1"] * 2


class TestAnEagerCall:
    def test_is_answered_from_the_record(self, charge):
        task = charge()
        results = [task.apply((7, 1)) for _ in range(2)]

        assert [(result.state, result.get()) for result in results] == [("SUCCESS", {"charged": 5})] * 2
        assert len(charge.runs) == 1

    def test_and_its_link_goes_on(self, app, charge):
        app.conf.task_always_eager = True
        seen = []

        @app.task(name="after")
        def after(result):
            seen.append(result)

        task = charge()
        for _ in range(2):
            task.apply_async((7, 1), link=after.s())

        assert seen == [{"charged": 5}] * 2

    def test_of_a_chain_goes_on_with_the_recorded_result(self, app, charge):
        app.conf.task_always_eager = True
        after = app.task(name="after")(given_back)
        task = charge()
        results = [(task.si(7, 1) | after.s()).apply_async().get() for _ in range(2)]

        assert results == [{"charged": 5}] * 2
        assert len(charge.runs) == 1


class TestACallWithinARunThatHasItsLockKey:
    """It is part of that run: it gets the same lease, and a record of its own."""

    @pytest.fixture(params=["direct", "eager"])
    def batch(self, app, request):
        """A task that charges orders of its own tenant, and then does what it is told to."""

        def make(charge, *orders, then=nothing):
            @app.task(base=FencedTask, lock_key="tenant:<tenant>", name="batch")
            def batch(tenant):
                call = charge if request.param == "direct" else lambda *args: charge.apply(args).get()
                results = [call(tenant, order) for order in orders]
                then()
                return results

            return batch

        return make

    def test_is_recorded_and_answered_from_the_record(self, charge, batch, in_worker, leases):
        assert in_worker(batch(charge(), 1, 2, 1), 7).value == [{"charged": 5}] * 3
        assert [key for _, key in charge.runs] == ["order:1", "order:2"]
        assert leases.record("order:1").done

    def test_stays_recorded_when_the_run_around_it_fails(self, charge, batch, in_worker):
        task = charge()
        in_worker(batch(task, 1, then=lambda: raises(ValueError("no"))), 7)
        in_worker(task, 7, 1)

        assert len(charge.runs) == 1

    def test_leaves_no_record_when_it_fails(self, charge, batch, in_worker, leases):
        outcome = in_worker(batch(charge(lambda self: raises(ValueError("no"))), 1), 7)

        assert (outcome.state, leases.record("order:1")) == ("FAILURE", None)

    def test_leaves_the_lease_to_the_run_around_it(self, charge, batch, in_worker, leases):
        seen = []
        then = lambda: seen.append(leases.holder("tenant:7").facts.task_name)  # noqa: E731
        in_worker(batch(charge(), 1, then=then), 7)

        assert seen == ["batch"]
        assert leases.holder("tenant:7") is None

    def test_claims_as_the_holder(self, charge, batch, in_worker, leases):
        seen = []
        task = charge(lambda self: seen.append((leases.record("order:1"), leases.holder("tenant:7"))))
        in_worker(batch(task, 1), 7)

        ((record, holder),) = seen
        assert (record.owner, record.token) == (holder.owner, holder.token)

    def test_is_refused_where_another_lock_key_guards_the_work(self, charge, batch, in_worker, leases):
        leases.acquire(Claim("old:7", "their owner", 60.0, record="order:1"))
        error = in_worker(batch(charge(), 1), 7).value

        assert isinstance(error, ClaimMismatch)
        assert leases.record("order:1").owner == "their owner"

    @pytest.mark.parametrize("call", [lambda task: task(7, 1), lambda task: task.apply((7, 1)).get()])
    def test_on_the_very_same_work_leaves_the_record_to_the_run_around_it(
        self, charge, in_worker, leases, call
    ):
        """Else the run around it fails, and another message is answered with the result of a part of it."""
        part, ends = charge(lambda self: "a part", name="part"), [lambda: raises(ValueError("no"))]

        def whole(self):
            value = call(part)
            if ends:
                ends.pop()()
            return f"all, with {value}"

        task = charge(whole, name="whole")
        assert in_worker(task, 7, 1).state == "FAILURE"
        assert leases.record("order:1") is None
        assert in_worker(task, 7, 1).value == "all, with a part"
        assert task(7, 1) == "all, with a part"

    def test_does_nothing_where_the_lease_is_lost_and_a_successor_does_the_work(
        self, charge, app, leases, in_worker, sent
    ):
        task = charge(name="part")

        @app.task(base=FencedTask, lock_key="tenant:<tenant>", name="frozen")
        def frozen(tenant):
            leases.force_release("tenant:7")
            leases.acquire(Claim("tenant:7", "successor", 60.0, record="order:1"))
            task(tenant, 1)

        assert (in_worker(frozen, 7).state, len(sent)) == ("RETRY", 1)
        assert (charge.runs, leases.record("order:1").owner) == ([], "successor")

    def test_takes_a_dead_claim_over(self, charge, batch, in_worker, leases):
        leases.acquire(Claim("old:7", "their owner", 60.0, record="order:1"))
        leases.force_release("old:7")

        assert in_worker(batch(charge(), 1), 7).value == [{"charged": 5}]


class TestTheKeyInTheBody:
    def test_is_there_for_whom_it_is_handed_on_to(self, charge, in_worker):
        in_worker(charge(), 7, 1)

        assert [key for _, key in charge.runs] == ["order:1"]

    def test_is_there_below_it_and_within_a_hold(self, app, charge, in_worker):
        def look(self):
            with hold("other", app=app):
                return [self.record_key, current.record_of()]

        assert in_worker(charge(look), 7, 1).value == ["order:1", "order:1"]

    def test_is_none_in_a_task_without_one_also_within_one_that_has_it(self, app, charge, in_worker):
        @app.task(base=FencedTask, bind=True, lock_key="inner", name="inner")
        def inner(self):
            return [self.record_key, current.record_of()]

        assert in_worker(charge(lambda self: inner()), 7, 1).value == [None, None]
        assert inner.record_key is None


class TestAHold:
    def test_for_the_key_of_a_task_looks_at_no_record(self, app, charge, in_worker, leases):
        task = charge()
        in_worker(task, 7, 1)
        with hold(task.s(7, 1)) as lease:
            assert lease.key == "tenant:7"
        with hold(task.s(7, 2)):
            pass

        assert leases.record("order:2") is None


class TestTheOption:
    def test_needs_a_lock_key(self, app):
        app.Task = FencedTask
        with pytest.raises(ConfigError, match="idempotency_key, but no lock_key"):

            @app.task(base=app.Task, idempotency_key="order:<order>", name="x", lazy=False)
            def pay(order): ...

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            (
                "order:<ordr>",
                "idempotency_key 'order:<ordr>' of task 'charge': <ordr>: the task has no parameter",
            ),
            (
                "order:{order}",
                "idempotency_key 'order:{order}' of task 'charge': {order} is not a placeholder",
            ),
            (7, "Option 'idempotency_key' of task 'charge' is 7"),
            (["order:<order>"], "Option 'idempotency_key' of task 'charge' is a list"),
            (lambda nothing: "x", "idempotency_key of task 'charge'"),
        ],
    )
    def test_is_checked_where_the_task_is_bound(self, charge, spec, message):
        with pytest.raises(ConfigError) as error:
            charge(idempotency_key=spec, lazy=False)

        assert message in str(error.value)

    def test_may_be_a_callable(self, charge, in_worker):
        in_worker(charge(idempotency_key=lambda tenant, order: ("order", tenant, order)), 7, 1)

        assert [key for _, key in charge.runs] == ["order:7:1"]

    def test_may_name_the_slot_of_a_periodic_run(self, charge, in_worker):
        task = charge(idempotency_key="report:<slot>")
        for slot in ("noon", "one", "noon"):
            in_worker(task, 7, 1, headers={"fence_slot": slot})

        assert [key for _, key in charge.runs] == ["report:noon", "report:one"]
        assert "beat_scheduler" in str(in_worker(task, 7, 1).value)

    def test_whose_key_can_t_be_made_lets_the_message_fail_before_anything(self, charge, in_worker, leases):
        outcome = in_worker(charge(), 7, None)

        assert "<order> is None" in str(outcome.value)
        assert leases.holder("tenant:7") is None

    def test_is_refused_with_a_store_that_keeps_no_records(self, store, heartbeat):
        locker = Locker(store, store, lambda event: None, heartbeat=heartbeat)

        with pytest.raises(ConfigError, match="keeps no idempotency records"):
            locker.acquire(
                Claim("k", "o", 30.0, record="r"), source=None, terms=Terms(), into=lambda lease: None
            )

    @pytest.mark.parametrize(("value", "right"), [(59, False), (60, True), ("1d", False)])
    def test_has_a_retention_of_at_least_a_minute(self, app, charge, value, right):
        app.conf.fence_record_retention = value
        if right:
            charge(lazy=False)
            return
        with pytest.raises(ConfigError, match="fence_record_retention"):
            charge(lazy=False)
