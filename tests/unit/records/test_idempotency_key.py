"""The option `idempotency_key`, and the key that it gives a body."""

from __future__ import annotations

import pytest

from celery_fence import ConfigError, FencedTask, hold
from celery_fence.locking import current
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim


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
