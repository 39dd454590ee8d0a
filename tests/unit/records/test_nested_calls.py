"""A call within a run that has its lock key has a record of its own."""

from __future__ import annotations

import pytest

from celery_fence import FencedTask
from celery_fence.errors import ClaimMismatch
from celery_fence.locking.store import Claim
from tests.unit.records.bodies import nothing, raises


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
