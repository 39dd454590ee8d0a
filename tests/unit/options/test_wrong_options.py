"""What an option with a wrong name or value says."""

from __future__ import annotations

import math
import sys

import pytest

from celery_fence.errors import ConfigError
from celery_fence.locking.policies import Park, Retry, Wait
from celery_fence.task.checks import STRANGERS, SYNONYMS, unknown_options
from celery_fence.task.fenced import FencedTask
from celery_fence.task.limits import allow_short_ttls
from celery_fence.task.options import TaskOptions
from celery_fence.task.written import OPTIONS


class TestWrongNames:
    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("lock_tll", "lock_ttl"),
            ("lock_timeout", "lock_ttl"),
            ("lock_expiry", "lock_ttl"),
            ("lock_expire", "lock_ttl"),
            ("lock_duration", "lock_ttl"),
            ("lock_keys", "lock_key"),
            ("LOCK_TTL", "lock_ttl"),
            ("miss_polcy", "miss_policy"),
            ("lost_polices", "lost_policy"),
            ("outage_polic", "outage_policy"),
            ("inject_into", "inject_as"),
            ("idempotency_keys", "idempotency_key"),
            *SYNONYMS.items(),
        ],
    )
    def test_lead_to_the_nearest_right_one(self, error_of, wrong, right):
        message = error_of(**{wrong: 1})

        assert f"'shop.sync': celery-fence has no option {wrong!r}" in message
        assert f"Did you mean {right!r}?" in message

    def test_of_a_plain_celery_option_are_not_ours_to_judge(self, declare):
        task = declare(rate_limit="5/m", queue_hint="x", locked=True)

        assert unknown_options(type(task)) == []
        assert task.locked

    def test_in_a_class_are_the_classs_own_affair(self, app):
        class Sync(FencedTask):
            lock_key = "tenant:<tenant_id>"
            lock_owner_team = "billing"

            def run(self, tenant_id):
                return tenant_id

        assert app.register_task(Sync()).lock_owner_team == "billing"

    @pytest.mark.parametrize(("wrong", "right"), STRANGERS.items())
    def test_of_other_libraries_without_any_prefix_would_do_nothing(self, error_of, wrong, right):
        message = error_of(**{wrong: 5})

        assert f"'shop.sync': celery-fence has no option {wrong!r}. Did you mean {right}?" in message

    def test_a_hook_is_no_wrong_option(self, declare):
        told = declare(on_miss=lambda miss, args, kwargs: None)

        assert callable(told.on_miss)

    def test_what_a_base_class_declares_may_be_given(self, app):
        class Ours(FencedTask):
            timeout = None
            lock_owner_team = None

        @app.task(base=Ours, lock_key="a", timeout=5, lock_owner_team="billing", lazy=False)
        def sync():
            return None

        assert (sync.timeout, sync.lock_owner_team) == (5, "billing")

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [("lock_tll", "lock_ttl"), ("lock_timeout", "lock_ttl"), ("miss_polcy", "miss_policy")],
    )
    def test_in_the_body_of_a_task_are_found_too(self, app, wrong, right):
        body = {"name": "shop.body", "lock_key": "<tenant_id>", wrong: 5, "run": lambda self, tenant_id: None}

        with pytest.raises(ConfigError, match=f"no option '{wrong}'. Did you mean '{right}'"):
            app.register_task(type("Sync", (FencedTask,), body)())

    def test_a_method_in_the_body_of_a_task_is_its_own_affair(self, app):
        class Sync(FencedTask):
            lock_key = "tenant:<tenant_id>"

            def lock_keys(self):
                return []

            def run(self, tenant_id):
                return tenant_id

        assert app.register_task(Sync()).lock_keys() == []

    def test_one_that_resembles_nothing_gets_the_whole_list(self, error_of):
        message = error_of(fence_zzzzzzzzz=1)

        assert all(option in message for option in OPTIONS)


class TestWrongValues:
    @pytest.mark.parametrize("value", ["5", 0, -1, 0.5, math.nan, math.inf, True, [5], object()])
    def test_a_ttl_that_is_none(self, error_of, value):
        message = error_of(lock_ttl=value)

        assert message.startswith("Option 'lock_ttl' of task 'shop.sync' is ")
        assert "a number of seconds from 1 to " in message

    @pytest.mark.parametrize(
        ("name", "value", "must"),
        [
            ("lock_max_hold", 0, "a number of seconds from 1"),
            ("lock_max_hold", "60", "Write 60, without quotes."),
            ("miss_policy", "retyr", "Did you mean 'retry'?"),
            ("miss_policy", Retry, "rite Retry()"),
            ("miss_policy", 5, "A policy is a name"),
            ("lost_policy", "flagg", "Did you mean 'flag'?"),
            ("outage_policy", "runn", "Did you mean 'run'?"),
            ("inject_as", "a b", "the name of a parameter"),
        ],
    )
    def test_name_the_task_the_option_the_limit_and_the_way_out(self, error_of, name, value, must):
        message = error_of(**{name: value})

        assert message.startswith(f"Option {name!r} of task 'shop.sync'")
        assert must in message

    def test_tests_may_have_a_shorter_ttl(self, app, declare):
        allow_short_ttls(app)

        assert TaskOptions.of(declare(lock_ttl=0.3)).ttl == 0.3

    def test_a_long_ttl_is_accepted_with_one_warning_though_celery_binds_twice(self, declare, recwarn):
        assert TaskOptions.of(declare(lock_ttl=601)).ttl == 601

        assert ["'lock_ttl' of task 'shop.sync'" in str(warning.message) for warning in recwarn] == [True]

    @pytest.mark.parametrize(
        ("settings", "options", "numbers"),
        [
            ({}, {"lock_max_hold": 59}, ("59", "60")),
            ({}, {"lock_ttl": 10, "lock_max_hold": 9}, ("9", "10")),
            ({"fence_max_hold": 100}, {"lock_ttl": 101}, ("100", "101")),
        ],
    )
    def test_a_longest_hold_below_the_ttl(self, app, error_of, settings, options, numbers):
        app.conf.update(settings)

        message = error_of(**options)

        assert "Task 'shop.sync'" in message
        assert "lock_max_hold" in message
        assert all(number in message for number in numbers)

    def test_a_ttl_longer_than_its_counter_lives(self, app, error_of):
        app.conf.fence_counter_retention = 100

        assert "fence_counter_retention, which is 100" in error_of(lock_ttl=101)

    def test_a_wrong_setting_shows_where_a_task_is_bound(self, app, error_of):
        app.conf.fence_ttl = "30"

        assert error_of().startswith("Celery setting 'fence_ttl' is '30'")


class TestWhatComesLater:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("lock_holders", 2),
            ("lock_holders", True),
            ("lock_cooldown", 5),
            ("fence_mode", "shadow"),
            ("fence_mode", "off"),
            ("miss_policy", "wait"),
            ("miss_policy", Wait(timeout=2)),
            ("miss_policy", Retry(max_wait=5, then=Park())),
            ("outage_policy", Park()),
        ],
    )
    def test_is_refused_for_now(self, error_of, name, value):
        message = error_of(**{name: value})

        assert message.startswith(f"Option {name!r} of task 'shop.sync'")
        assert " yet" in message

    def test_its_defaults_may_be_written(self, declare):
        declare(lock_holders=1, lock_cooldown=0, fence_mode="enforce")


class TestOnCommit:
    def test_without_django_it_says_what_is_missing(self, declare, monkeypatch):
        monkeypatch.setitem(sys.modules, "celery.contrib.django.task", None)

        with pytest.raises(ConfigError, match="delay_on_commit needs Django"):
            declare().delay_on_commit(7)
