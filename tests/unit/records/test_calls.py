"""Direct and eager calls share their records with messages; a block has none."""

from __future__ import annotations

import pytest

from celery_fence import hold
from celery_fence.errors import AlreadyDone, StoreUnavailable
from celery_fence.stores.memory import MemoryStore
from tests.unit.records.bodies import given_back, raises


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


class TestAHold:
    def test_for_the_key_of_a_task_looks_at_no_record(self, app, charge, in_worker, leases):
        task = charge()
        in_worker(task, 7, 1)
        with hold(task.s(7, 1)) as lease:
            assert lease.key == "tenant:7"
        with hold(task.s(7, 2)):
            pass

        assert leases.record("order:2") is None
