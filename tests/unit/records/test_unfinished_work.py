"""A run that didn't return leaves no record, and its claim no longer than it lives."""

from __future__ import annotations

import pytest
from celery import states
from celery.exceptions import Ignore, Reject

from celery_fence.errors import ClaimMismatch
from celery_fence.locking.store import Claim, Facts
from celery_fence.stores.memory import MemoryStore
from tests.unit.records.bodies import nothing, raises


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
