"""Where the settings come from, and when a change counts."""

from __future__ import annotations

import math
import timeit
import types

import pytest
from celery import Celery

from celery_fence.task.settings import FenceSettings
from tests.unit.settings.apps import app_with, error_of


class TestWhenTheyCount:
    def test_a_change_counts_at_once(self):
        app = app_with()
        assert FenceSettings.of(app).ttl == 60

        app.conf.update(fence_ttl=20)
        assert FenceSettings.of(app).ttl == 20

        app.conf.fence_ttl = 30
        assert FenceSettings.of(app).ttl == 30

        del app.conf["fence_ttl"]
        assert FenceSettings.of(app).ttl == 60

    def test_a_value_that_only_equals_the_old_one_is_checked_too(self):
        app = app_with(fence_ttl=1)
        FenceSettings.of(app)

        app.conf.fence_ttl = True

        assert "'fence_ttl' is True" in error_of(app)

    def test_a_misspelt_setting_is_noticed_when_it_is_added_later(self):
        app = app_with()
        FenceSettings.of(app)

        app.conf.fence_tll = 30

        assert "'fence_tll'" in error_of(app)

    def test_the_result_backend_given_later_moves_the_leases(self):
        app = app_with()
        assert FenceSettings.of(app).url == "redis://broker/0"

        app.conf.result_backend = "redis://results/1"

        assert FenceSettings.of(app).url == "redis://results/1"

    @pytest.mark.parametrize(
        ("options", "kept"),
        [
            ("?socket_timeout=30&retry_on_timeout=true", ""),
            ("?socket_timeout=30&db=2&socket_connect_timeout=3", "?db=2"),
            ("?protocol=3&client_name=a", "?protocol=3&client_name=a"),
        ],
    )
    def test_the_result_backends_timeouts_are_not_those_of_the_leases(self, options, kept):
        app = app_with(result_backend=f"redis://results/1{options}")

        assert FenceSettings.of(app).url == f"redis://results/1{kept}"

    def test_another_broker_moves_them_too(self):
        app = app_with()
        FenceSettings.of(app)

        app.conf.broker_url = "redis://broker/5"

        assert FenceSettings.of(app).url == "redis://broker/5"

    def test_without_a_change_it_is_the_same_object(self):
        app = app_with(fence_ttl=10)

        assert FenceSettings.of(app) is FenceSettings.of(app)

    def test_asking_again_is_cheap(self):
        app = app_with(fence_ttl=10)
        FenceSettings.of(app)

        once = min(timeit.repeat(lambda: FenceSettings.of(app), number=200, repeat=20)) / 200

        assert once < 30e-6, f"{once * 1e6:.1f} us"

    def test_apps_in_one_process_have_their_own(self):
        one, two = app_with(fence_ttl=10), app_with(fence_ttl=20)

        assert [FenceSettings.of(app).ttl for app in (one, two)] == [10, 20]


class TestWhereTheyComeFrom:
    def test_a_class_and_what_is_changed_in_it(self):
        class Config:
            broker_url = "redis://broker/0"
            fence_ttl = 12.5

        app = Celery(set_as_current=False)
        app.config_from_object(Config)
        assert FenceSettings.of(app).ttl == 12.5

        Config.fence_ttl = 13
        assert FenceSettings.of(app).ttl == 13

    def test_a_module_with_functions_and_imports_of_its_own(self):
        module = types.ModuleType("celeryconfig")
        module.broker_url = "redis://broker/0"
        module.fence_ttl = 12.5
        module.fence_ttl_of = lambda tenant: tenant
        module.fence_policies = math

        app = Celery(set_as_current=False)
        app.config_from_object(module)

        assert FenceSettings.of(app).ttl == 12.5

    def test_a_namespace(self):
        app = Celery(set_as_current=False)
        app.config_from_object(
            {"SHOP_BROKER_URL": "redis://broker/0", "SHOP_FENCE_TTL": 12.5, "FENCE_URL": "somebody else's"},
            namespace="SHOP",
        )

        assert FenceSettings.of(app).ttl == 12.5

    def test_the_users_value_beats_ours_whatever_comes_first(self):
        app = app_with()
        FenceSettings.of(app)

        app.config_from_object({"broker_url": "redis://broker/0", "fence_ttl": 10}, force=True)

        assert FenceSettings.of(app).ttl == 10
