"""A run that meets no store ends as its outage policy says."""

from __future__ import annotations

import pytest

from celery_fence import StoreUnavailable, current_lease
from celery_fence.locking.null_lease import NullLease
from celery_fence.stores.memory import MemoryStore
from celery_fence.task.notes import Notes


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
