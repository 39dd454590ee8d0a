"""A run that loses its lease ends as its lost policy says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence import FencedTask, LeaseLost, StoreUnavailable, current_lease, signals
from celery_fence.locking.owed import Owed
from celery_fence.locking.store import Claim, Granted, Released
from celery_fence.stores.memory import MemoryStore
from celery_fence.task import run
from celery_fence.task.notes import Notes


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

    @pytest.mark.parametrize(
        "ends", [lambda self: "my result", lose(None, "expired")], ids=["returned", "lost"]
    )
    def test_whose_message_another_run_has_ended_meanwhile_stores_nothing(
        self, task, in_worker, monkeypatch, ends
    ):
        """That one had lost its lease as well, and ended first; nobody holds the key by now."""
        monkeypatch.setattr(MemoryStore, "release", lambda *_: Released(ended=True))

        outcome = in_worker(task(ends), "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert outcome.state == "IGNORED"


class TestAFailureAfterALossThatTheStoreIsSlowToHearOf:
    """Only the store knows whether a copy took over: what stands under the task id is the copy's business then."""

    @pytest.fixture
    def silent(self, monkeypatch):
        """The store doesn't answer the first of so many releases."""
        left, release = [], MemoryStore.release

        def of(times):
            left.extend([1] * times)

        def answer(self, *asked):
            if left:
                left.pop()
                raise StoreUnavailable("no answer")
            return release(self, *asked)

        monkeypatch.setattr(MemoryStore, "release", answer)
        return of

    @pytest.fixture
    def replaced(self, leases, occupy):
        """In a body: the lease is lost to a copy of this very message."""

        def replaced():
            holder = leases.holder("job:k")
            leases.force_release("job:k")
            facts = {"task_name": "the task", "task_id": "mine", "delivery": holder.facts.delivery}
            occupy("job:k", owner="the copy", **facts)
            current_lease().lose("expired")

        return replaced

    def ends(self, prepare, error=None):
        def body(self):
            prepare()
            raise error or current_lease().loss()

        return body

    @pytest.mark.parametrize("error", [None, ValueError("the body's own")], ids=["lost", "failed"])
    def test_with_a_copy_at_work_stores_nothing(self, task, in_worker, silent, replaced, error):
        silent(2)
        fails = task(self.ends(replaced, error), lost_policy="raise")

        outcome = in_worker(fails, "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert outcome.state == "IGNORED"

    def test_with_a_free_key_fails(self, task, in_worker, silent):
        silent(2)
        fails = task(self.ends(lambda: current_lease().lose("expired")), lost_policy="raise")

        outcome = in_worker(fails, "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert (outcome.state, type(outcome.value)) == ("FAILURE", LeaseLost)

    def test_is_told_after_a_while_in_any_case(self, task, in_worker, monkeypatch, silent, replaced):
        silent(1000)
        monkeypatch.setattr(run, "PATIENCE", 0.2)
        fails = task(self.ends(replaced), lost_policy="raise")

        outcome = in_worker(fails, "k", id="mine", headers={"fence": {"delivery": "d"}})

        assert (outcome.state, type(outcome.value)) == ("FAILURE", LeaseLost)

    @pytest.fixture
    def waits(self, monkeypatch):
        """How long each release that had no answer was waited for."""
        waits = []
        monkeypatch.setattr(Owed, "answer_within", lambda self, seconds: waits.append(seconds))
        return waits

    @pytest.mark.parametrize(
        ("ends", "lost_policy", "fence"),
        [
            ("trusted", "raise", {"delivery": "d"}),
            ("lost", "retry", {"delivery": "d"}),
            ("lost", "raise", {}),
            ("lost and returned", "flag", {"delivery": "d"}),
        ],
        ids=["a failure in time", "a retry", "a message without a delivery", "a result"],
    )
    def test_what_no_copy_can_contradict_waits_for_nothing(
        self, in_worker, task, silent, waits, *, ends, lost_policy, fence
    ):
        silent(1000)

        def body(self):
            if ends != "trusted":
                current_lease().lose("expired")
            if ends == "lost":
                raise current_lease().loss()
            if ends == "trusted":
                raise ValueError("its own")

        in_worker(task(body, lost_policy=lost_policy), "k", id="mine", headers={"fence": fence})

        assert waits == [0.0]
