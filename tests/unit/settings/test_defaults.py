"""What the settings are without a word, and what each can be."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_fence.locking.policies import DeadLetter, Raise, Requeue, Retry
from celery_fence.task.settings import FenceSettings
from tests.unit.settings.apps import app_with

DAY = 86400.0


def test_without_a_word_every_setting_has_the_default_of_the_manual():
    assert FenceSettings.of(app_with()) == FenceSettings(
        home="redis://broker/0",
        ttl=60.0,
        renew_fraction=1 / 3,
        max_hold=None,
        miss_policy=Retry(),
        lost_policy="retry",
        lost_delay=0.0,
        outage_policy=Retry(),
        mode="enforce",
        inject_as="fencing_token",
        prefix="fence",
        counter_retention=7 * DAY,
        done_retention=7200.0,
        remember_results=True,
        dead_letter_queue="fence.dead_letters",
    )


def test_every_setting_can_be_set():
    wanted = {
        "ttl": 30.0,
        "renew_fraction": 0.5,
        "max_hold": 600.0,
        "miss_policy": Requeue(max_wait=5),
        "lost_policy": "flag",
        "lost_delay": 0.0,
        "outage_policy": "run",
        "mode": "enforce",
        "inject_as": "token",
        "prefix": "shop",
        "counter_retention": DAY,
        "done_retention": 90.0,
        "remember_results": False,
        "dead_letter_queue": "dead",
    }

    app = app_with(fence_url="redis://locks/3", **{f"fence_{name}": value for name, value in wanted.items()})

    assert FenceSettings.of(app) == FenceSettings(home="redis://locks/3", **wanted)


def test_a_whole_number_of_seconds_becomes_a_float():
    assert isinstance(FenceSettings.of(app_with(fence_ttl=30)).ttl, float)


class TestPolicies:
    def test_a_name_is_the_policy_with_its_defaults(self):
        assert FenceSettings.of(app_with(fence_miss_policy="dead_letter")).miss_policy == DeadLetter()

    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("retry", Retry()),
            ("raise", "raise"),
            ("run", "run"),
            (Raise(), "raise"),
            (Retry(max_wait=300), Retry(max_wait=300)),
        ],
    )
    def test_for_an_outage(self, written, meant):
        assert FenceSettings.of(app_with(fence_outage_policy=written)).outage_policy == meant


class TestHowLongAnEndedDeliveryIsRemembered:
    def test_twice_as_long_as_the_broker_may_take_to_redeliver(self):
        app = app_with(broker_transport_options={"visibility_timeout": 7200})

        assert FenceSettings.of(app).done_retention == 14400

    def test_at_least_an_hour(self):
        app = app_with(broker_transport_options={"visibility_timeout": 5})

        assert FenceSettings.of(app).done_retention == 3600

    def test_an_hour_where_the_broker_has_no_visibility_timeout(self):
        app = Celery(broker="amqp://", backend="redis://results", set_as_current=False)

        assert FenceSettings.of(app).done_retention == 3600
