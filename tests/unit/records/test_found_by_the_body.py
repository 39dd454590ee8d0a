"""A body that finds its work done in the database ends as work that was done."""

from __future__ import annotations

import pytest
from celery.signals import before_task_publish

from celery_fence.errors import AlreadyDone
from celery_fence.task.notes import Notes
from celery_fence.task.skip import Skipped
from tests.unit.records.bodies import given_back, raises, self_found

DELIVERED = {"fence": Notes(delivery="d").header()}


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
