"""What a worker finds wrong with its app as it starts."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_fence.locking.policies import Retry
from celery_fence.task.checks import check_app
from celery_fence.task.fenced import FencedTask


class TestAWorkersCheck:
    def levels(self, findings):
        return [finding.level for finding in findings]

    def test_finds_nothing_where_nothing_is_wrong(self, app, declare):
        declare()

        assert check_app(app) == []

    def test_finds_every_wrong_setting_at_once_and_no_more(self, app, declare):
        declare()
        app.conf.update(fence_tll=5, fence_polcy="retry")

        findings = check_app(app)

        assert self.levels(findings) == ["error", "error"]
        assert {finding.text.split("'")[1] for finding in findings} == {"fence_tll", "fence_polcy"}

    @pytest.mark.parametrize(
        ("options", "warns"),
        [
            ({"acks_late": True, "time_limit": 90}, True),  # 30 s of waiting and 90 s of running
            ({"acks_late": True, "time_limit": 60}, False),
            ({"acks_late": True, "lock_max_hold": 90.0}, True),
            ({"acks_late": True, "time_limit": 90, "miss_policy": "skip"}, False),
            ({"acks_late": False, "time_limit": 90}, False),
        ],
    )
    def test_warns_of_a_wait_and_a_run_beyond_the_visibility_timeout(self, app, declare, options, warns):
        app.conf.update(
            broker_url="redis://localhost", broker_transport_options={"visibility_timeout": 100}, fence_ttl=10
        )
        declare(**{"miss_policy": Retry(max_delay=30), **options})

        found = [finding.text for finding in check_app(app) if "visibility timeout" in finding.text]

        assert len(found) == warns

    def test_finds_a_wrong_value(self, app):
        app.conf.fence_ttl = "5"

        (finding,) = check_app(app)

        assert finding.level == "error"
        assert "'fence_ttl' is '5'" in finding.text

    @pytest.mark.parametrize("url", ["redis+sentinel://a", "http://a", "sql+sqlite://"])
    def test_finds_a_store_that_there_isnt(self, app, url):
        app.conf.fence_url = url

        (finding,) = check_app(app)

        assert finding.level == "error"

    def test_finds_that_there_is_no_place_for_leases(self, app, declare):
        declare()
        app.conf.fence_url = None

        (finding,) = check_app(app)

        assert finding.level == "error"
        assert "Set 'fence_url'" in finding.text

    def test_finds_a_task_that_was_spoilt_after_it_was_bound(self, app, declare):
        declare().lock_ttl = "5"

        (finding,) = check_app(app)

        assert finding.level == "error"
        assert "'lock_ttl' of task 'shop.sync'" in finding.text

    def test_finds_memory_that_processes_dont_share(self, app):
        (finding,) = check_app(app, processes=2)

        assert finding.level == "error"
        assert "memory://" in finding.text
        assert "2 of them" in finding.text
        assert check_app(app, processes=1) == []

    def test_warns_of_a_key_that_excludes_nothing(self, app, declare):
        def sync(tenant_id, request_id):
            return tenant_id

        declare(sync, lock_key="tenant:<tenant_id>:<request_id>")

        (finding,) = check_app(app)

        assert finding.level == "warning"
        assert "<request_id>" in finding.text

    @pytest.mark.parametrize("option", [{"lock_key": "a"}, {"lock_ttl": 5}, {"miss_policy": "skip"}])
    def test_warns_of_an_option_beside_another_base_which_does_nothing(self, app, declare, option):
        declare(lock_key="tenant:<tenant_id>")

        @app.task(name="shop.forgotten", lazy=False, **option)
        def forgotten(tenant_id):
            return tenant_id

        (finding,) = check_app(app)

        assert finding.level == "warning"
        assert f"Task 'shop.forgotten' has {next(iter(option))}, but it is not fenced" in finding.text
        assert "base=FencedTask" in finding.text

    def test_finds_every_wrong_value_of_the_settings_at_once(self, app):
        app.conf.update(fence_ttl="5", fence_prefix="a b")

        assert [finding.text.split("'")[1] for finding in check_app(app)] == ["fence_ttl", "fence_prefix"]

    def test_warns_of_a_setting_outside_of_the_namespace(self):
        app = Celery(set_as_current=False)
        app.config_from_object(
            {"SHOP_BROKER_URL": "memory://", "SHOP_FENCE_URL": "memory://", "FENCE_TTL": 5, "FENCE_OTHER": 5},
            namespace="SHOP",
        )

        (finding,) = check_app(app)

        assert finding.level == "warning"
        assert "'FENCE_TTL'" in finding.text
        assert "'SHOP_FENCE_TTL'" in finding.text

    def test_tells_errors_first(self, app):
        @app.task(name="a.advice", base=FencedTask, lock_key="<request_id>", lazy=False)
        def advice(request_id):
            return request_id

        @app.task(name="b.spoilt", base=FencedTask, lock_key="<tenant_id>", lazy=False)
        def spoilt(tenant_id):
            return tenant_id

        spoilt.lock_ttl = "5"

        assert self.levels(check_app(app)) == ["error", "warning"]
