"""Where fenced tasks are the default, those without a key aren't fenced."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_fence.task.fenced import FencedTask
from celery_fence.task.options import TaskOptions


class TestWhereFencedTasksAreTheDefault:
    @pytest.fixture
    def app(self):
        app = Celery("shop", broker="memory://", task_cls=FencedTask, set_as_current=False)
        app.conf.fence_url = "memory://"
        return app

    def test_one_without_a_key_is_not_fenced_and_keeps_its_arguments(self, declare):
        options = TaskOptions.of(declare(base=None, lock_key=None))

        assert options.lock_key is None
        assert options.inject_as is None

    def test_one_with_a_key_is(self, declare):
        assert TaskOptions.of(declare(base=None)).lock_key.render((7,), {}) == "tenant:7"

    def test_one_that_names_its_base_needs_a_key_all_the_same(self, error_of):
        assert "has no lock_key" in error_of(base=FencedTask, lock_key=None)

    def test_a_misspelt_key_is_not_silently_no_key(self, error_of):
        message = error_of(base=None, lock_key=None, lock_keyy="tenant:<tenant_id>")

        assert "Did you mean 'lock_key'?" in message

    @pytest.mark.parametrize("option", [{"lock_ttl": 5}, {"miss_policy": "skip"}, {"lost_policy": "flag"}])
    def test_one_with_other_options_and_no_key_is_a_mistake(self, error_of, option):
        message = error_of(base=None, lock_key=None, **option)

        assert f"Task 'shop.sync' has {next(iter(option))}, but no lock_key" in message

    def test_options_of_their_base_are_for_those_that_have_a_key(self, app):
        class ShopTask(FencedTask):
            lock_ttl = 5

        app = Celery("shop", broker="memory://", task_cls=ShopTask, set_as_current=False)
        app.conf.fence_url = "memory://"

        @app.task(lazy=False)
        def plain(tenant_id, timeout=5):
            return tenant_id

        assert TaskOptions.of(plain).lock_key is None

    def test_one_without_a_key_may_have_attributes_of_any_name(self, declare):
        assert declare(base=None, lock_key=None, timeout=5).timeout == 5
