"""What the options of a task are made of, and when a change counts."""

from __future__ import annotations

import timeit

import pytest

from celery_fence.errors import ConfigError
from celery_fence.locking.policies import DeadLetter, Raise, Requeue, Retry, Skip
from celery_fence.task.fenced import FencedTask
from celery_fence.task.options import TaskOptions
from celery_fence.task.settings import FenceSettings


def by_keyword(tenant_id, *, token=None):
    return token


class TestWhatTheyAreMadeOf:
    def test_without_a_word_they_are_the_settings(self, app, declare):
        app.conf.update(
            fence_ttl=30,
            fence_max_hold=300,
            fence_renew_fraction=0.5,
            fence_miss_policy="requeue",
            fence_lost_policy="flag",
            fence_lost_delay=2,
            fence_outage_policy="run",
        )

        options = TaskOptions.of(declare())

        assert options == TaskOptions(
            lock_key=options.lock_key,
            idempotency_key=None,
            ttl=30.0,
            max_hold=300.0,
            renew_fraction=0.5,
            miss_policy=Requeue(),
            lost_policy="flag",
            outage_policy="run",
            inject_as="fencing_token",
            lost_delay=2.0,
            settings=FenceSettings.of(app),
        )

    def test_the_task_says_it_better(self, app, declare):
        app.conf.update(
            fence_ttl=30, fence_max_hold=300, fence_miss_policy="requeue", fence_lost_policy="flag"
        )

        options = TaskOptions.of(
            declare(
                by_keyword,
                lock_ttl=5,
                lock_max_hold=50,
                miss_policy=Skip(chain="continue"),
                lost_policy="raise",
                outage_policy=Retry(max_wait=9),
                inject_as="token",
            )
        )

        assert (options.ttl, options.max_hold) == (5.0, 50.0)
        assert options.miss_policy == Skip(chain="continue")
        assert (options.lost_policy, options.outage_policy) == ("raise", Retry(max_wait=9))
        assert options.inject_as == "token"

    def test_a_task_may_have_no_longest_hold_where_the_setting_has_one(self, app, declare):
        app.conf.fence_max_hold = 300

        assert TaskOptions.of(declare(lock_max_hold=None)).max_hold is None

    def test_none_means_the_setting_as_it_does_for_celerys_own_options(self, app, declare):
        app.conf.update(fence_ttl=30, fence_miss_policy="skip")

        options = TaskOptions.of(declare(lock_ttl=None, miss_policy=None))

        assert (options.ttl, options.miss_policy) == (30.0, Skip())

    def test_a_base_class_may_say_it_for_many(self, app):
        class TenantTask(FencedTask):
            lock_key = "tenant:<tenant_id>"
            lock_ttl = 5
            lock_owner_team = "billing"  # an attribute of its own, not an option

        @app.task(base=TenantTask, lazy=False)
        def sync(tenant_id):
            return tenant_id

        options = TaskOptions.of(sync)

        assert options.lock_key.render((7,), {}) == "tenant:7"
        assert options.ttl == 5.0

    def test_the_decorator_beats_the_base_class(self, app):
        class TenantTask(FencedTask):
            lock_key = "tenant:<tenant_id>"
            lock_ttl = 5

        @app.task(base=TenantTask, lock_ttl=6, lazy=False)
        def sync(tenant_id):
            return tenant_id

        assert TaskOptions.of(sync).ttl == 6.0


def test_a_policy_by_name_and_as_an_object_are_the_same(declare):
    options = TaskOptions.of(declare(miss_policy="dead_letter", outage_policy=Raise()))

    assert options.miss_policy == DeadLetter()
    assert options.outage_policy == "raise"


def test_a_base_class_is_not_checked_before_it_is_a_task(app):
    class Base(FencedTask):
        lock_ttl = 5

    Base.bind(app)

    assert Base.__bound__


class TestWhenTheyCount:
    def test_a_change_of_the_settings_counts_at_once(self, app, declare):
        task = declare()
        assert TaskOptions.of(task).ttl == 60

        app.conf.fence_ttl = 30

        assert TaskOptions.of(task).ttl == 30

    def test_a_change_of_the_task_or_its_class_counts_at_once(self, declare):
        task = declare(lock_ttl=5)
        TaskOptions.of(task)

        type(task).lock_ttl = 6
        assert TaskOptions.of(task).ttl == 6

        task.lock_ttl = 7
        assert TaskOptions.of(task).ttl == 7

    def test_a_wrong_change_is_refused(self, declare):
        task = declare(lock_ttl=5)
        TaskOptions.of(task)

        task.lock_ttl = "7"

        with pytest.raises(ConfigError, match=r"'lock_ttl' of task 'shop\.sync' is '7'"):
            TaskOptions.of(task)

    def test_without_a_change_they_are_the_same_object(self, declare):
        task = declare(lock_key=lambda tenant_id: f"tenant:{tenant_id}")

        assert TaskOptions.of(task) is TaskOptions.of(task)

    def test_a_task_that_celery_still_holds_as_a_promise(self, app):
        @app.task(base=FencedTask, lock_key="tenant:<tenant_id>", lock_ttl=5)
        def promised(tenant_id):
            return tenant_id

        assert TaskOptions.of(promised).ttl == 5

    def test_asking_again_is_cheap(self, declare):
        task = declare()
        TaskOptions.of(task)

        once = min(timeit.repeat(lambda: TaskOptions.of(task), number=200, repeat=20)) / 200

        assert once < 40e-6, f"{once * 1e6:.1f} us"
