"""What a setting with a wrong value says."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from celery import Celery

from celery_fence.locking.policies import Coalesce, Park, Requeue, Retry, Wait
from celery_fence.task.limits import allow_short_ttls
from celery_fence.task.settings import FenceSettings, wrong_settings
from tests.unit.settings.apps import app_with, error_of

NOT_A_DURATION = ["30", "", "soon", 0, -1, math.nan, math.inf, 1e12, True, None, [30]]


class TestWrongValues:
    @pytest.mark.parametrize("value", NOT_A_DURATION)
    def test_a_ttl_that_is_none(self, value):
        message = error_of(app_with(fence_ttl=value))

        assert message.startswith("Celery setting 'fence_ttl' is ")
        assert "a number of seconds from 1 to " in message

    def test_the_value_is_shown_as_it_was_written(self):
        assert "is '30', but" in error_of(app_with(fence_ttl="30"))
        assert "Write 30, without quotes." in error_of(app_with(fence_ttl="30"))

    def test_it_is_named_as_it_was_written_under_a_namespace(self):
        app = Celery(set_as_current=False)
        app.config_from_object({"CELERY_FENCE_TTL": "30"}, namespace="CELERY")

        assert error_of(app).startswith("Celery setting 'CELERY_FENCE_TTL' is '30'")

    def test_it_is_named_without_the_namespace_where_it_was_set_without(self):
        app = Celery(broker="redis://broker/0", namespace="CELERY", set_as_current=False)
        app.conf.fence_ttl = "30"

        assert error_of(app).startswith("Celery setting 'fence_ttl' is '30'")

    @pytest.mark.parametrize("value", [0.99, 0.05])
    def test_a_ttl_below_a_second(self, value):
        assert "from 1 to" in error_of(app_with(fence_ttl=value))

    def test_tests_may_go_lower_for_their_app(self):
        app, other = app_with(fence_ttl=0.3), app_with(fence_ttl=0.3)

        allow_short_ttls(app)

        assert FenceSettings.of(app).ttl == 0.3
        assert "from 1 to" in error_of(other)

    def test_a_long_ttl_is_accepted_with_one_warning(self, recwarn, caplog):
        app = app_with(fence_ttl=601)

        assert FenceSettings.of(app).ttl == 601
        app.conf.fence_max_hold = 1000
        FenceSettings.of(app)

        assert ["'fence_ttl' is 601 seconds" in str(warning.message) for warning in recwarn] == [True]
        assert not caplog.records  # a second channel would say it twice

    def test_ten_minutes_are_not_long(self, recwarn):
        FenceSettings.of(app_with(fence_ttl=600))

        assert not recwarn.list

    @pytest.mark.parametrize(
        ("name", "value", "must"),
        [
            ("renew_fraction", 0, "a number from 0.05 to 0.8"),
            ("renew_fraction", 1, "a number from 0.05 to 0.8"),
            ("renew_fraction", math.nan, "a number from 0.05 to 0.8"),
            ("renew_fraction", "0.5", "a number from 0.05 to 0.8. Write 0.5, without quotes."),
            ("renew_fraction", True, "a number from 0.05 to 0.8"),
            ("max_hold", 0, "a number of seconds from 1"),
            ("max_hold", "600", "a number of seconds from 1"),
            ("max_hold", 59, "at least fence_ttl, which is 60 seconds"),
            ("lost_policy", "rtry", "Did you mean 'retry'?"),
            ("lost_policy", None, "one of 'retry', 'raise', 'flag'"),
            ("outage_policy", "runn", "Did you mean 'run'?"),
            ("outage_policy", "open", "Did you mean 'run'?"),
            ("outage_policy", 5, "A policy is a name"),
            ("miss_policy", "retyr", "Did you mean 'retry'?"),
            ("miss_policy", Retry, "rite Retry()"),
            ("miss_policy", None, "A policy is a name"),
            ("inject_as", "no name", "the name of a parameter"),
            ("inject_as", "class", "the name of a parameter"),
            ("inject_as", "self", "the name of a parameter"),
            ("inject_as", 5, "the name of a parameter"),
            ("prefix", "", "a text without spaces and braces"),
            ("prefix", "a{b}", "a text without spaces and braces"),
            ("prefix", "a b", "a text without spaces and braces"),
            ("prefix", None, "a text without spaces and braces"),
            ("counter_retention", 0, "a number of seconds from 60"),
            ("counter_retention", math.inf, "a number of seconds from 60"),
            ("done_retention", "3600", "a number of seconds from 60"),
            ("remember_results", 1, "True or False"),
            ("remember_results", "yes", "True or False"),
            ("dead_letter_queue", "", "the name of a queue"),
            ("dead_letter_queue", None, "the name of a queue"),
            ("url", "localhost:6379", "a URL such as"),
            ("url", 6379, "a URL such as"),
            ("mode", "shadwo", "Did you mean 'shadow'?"),
        ],
    )
    def test_name_the_setting_the_limit_and_the_way_out(self, name, value, must):
        message = error_of(app_with(**{f"fence_{name}": value}))

        assert message.startswith(f"Celery setting 'fence_{name}'")
        assert must in message

    def test_a_counter_that_would_end_before_its_lease(self):
        message = error_of(app_with(fence_ttl=100, fence_counter_retention=99))

        assert message.startswith("Celery setting 'fence_counter_retention' is 99")
        assert "at least fence_ttl, which is 100" in message

    def test_a_wrong_url_is_not_repeated_for_it_may_hold_a_password(self):
        assert "secret" not in error_of(app_with(fence_url="user:secret@host"))

    def test_every_wrong_one_is_told_at_once(self):
        app = app_with(fence_tll=5, fence_ttl="5", fence_prefix="a b", fence_lost_policy="flag")

        told = [str(error) for error in wrong_settings(app)]

        assert [message.split("'")[1] for message in told] == ["fence_tll", "fence_ttl", "fence_prefix"]
        assert error_of(app).splitlines() == told

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            (
                timedelta(minutes=2),
                "is a timedelta, but must be a number of seconds from 1 to 31622400, which is",
            ),
            (timedelta(minutes=2), "Write 120, its seconds."),
            (Decimal("2.5"), "is a Decimal, but must be"),
            (Decimal("2.5"), "Write 2.5."),
            ([5], "is a list, but must be"),
            (367 * 86400, "which is 366 days."),
        ],
    )
    def test_a_time_of_another_type_is_named_with_what_to_write(self, value, says):
        assert says in error_of(app_with(fence_ttl=value))


class TestWhatComesLater:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("mode", "shadow"),
            ("mode", "off"),
            ("mode", {"reports.*": "off"}),
            ("miss_policy", "wait"),
            ("miss_policy", "park"),
            ("miss_policy", "coalesce"),
            ("miss_policy", Wait(timeout=2)),
            ("miss_policy", Retry(max_wait=5, then=Park())),
            ("miss_policy", Requeue(max_wait=5, then=Retry(max_wait=3, then=Coalesce()))),
            ("outage_policy", "park"),
            ("outage_policy", Retry(max_wait=5, then=Wait())),
        ],
    )
    def test_is_refused_for_now(self, name, value):
        message = error_of(app_with(**{f"fence_{name}": value}))

        assert message.startswith(f"Celery setting 'fence_{name}'")
        assert " yet" in message
