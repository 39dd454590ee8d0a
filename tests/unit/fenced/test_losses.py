"""A run that loses its lease ends as its lost policy says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence import FencedTask, LeaseLost, current_lease, signals
from celery_fence.locking.store import Claim, Granted
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
