"""Under which name the token is injected, and into which functions."""

from __future__ import annotations

import pytest

from celery_fence.task.fenced import FencedTask
from celery_fence.task.options import TaskOptions


def by_keyword(tenant_id, *, token=None):
    return token


def anything(tenant_id, **more):
    return more


class TestTheInjectedArgument:
    def test_is_left_out_where_the_function_doesnt_name_it(self, declare):
        def sync(tenant_id):
            return tenant_id

        assert TaskOptions.of(declare(sync)).inject_as is None

    @pytest.mark.parametrize("bind", [False, True])
    def test_may_be_by_position_or_keyword(self, declare, bind):
        def sync(self, tenant_id, fencing_token=None):
            return tenant_id

        def unbound(tenant_id, fencing_token=None):
            return tenant_id

        assert TaskOptions.of(declare(sync if bind else unbound, bind=bind)).inject_as == "fencing_token"

    def test_doesnt_go_into_bare_keywords_by_the_settings_word(self, app, declare):
        app.conf.fence_inject_as = "token"

        assert TaskOptions.of(declare(anything)).inject_as is None

    def test_goes_into_bare_keywords_where_the_task_says_so(self, declare):
        assert TaskOptions.of(declare(anything, inject_as="token")).inject_as == "token"

    def test_is_none_where_the_task_wants_none(self, declare):
        assert TaskOptions.of(declare(inject_as=None)).inject_as is None

    def test_named_by_a_base_class_is_taken_by_those_that_have_it(self, app):
        class TenantTask(FencedTask):
            lock_key = "tenant:<tenant_id>"
            inject_as = "token"

        @app.task(base=TenantTask, lazy=False)
        def takes(tenant_id, *, token):
            return token

        @app.task(base=TenantTask, lazy=False)
        def takes_not(tenant_id):
            return tenant_id

        assert [TaskOptions.of(task).inject_as for task in (takes, takes_not)] == ["token", None]

    def test_that_the_function_doesnt_have_is_refused(self, error_of):
        message = error_of(by_keyword, inject_as="tokn")

        assert "'inject_as' of task 'shop.sync' is 'tokn'" in message
        assert "Did you mean 'token'?" in message

    @pytest.mark.parametrize("kind", ["positional", "variadic", "keywords"])
    def test_that_cant_be_given_by_keyword_is_refused(self, error_of, kind):
        def positional(fencing_token, tenant_id, /):
            return tenant_id

        def variadic(tenant_id, *fencing_token):
            return tenant_id

        def keywords(tenant_id, **fencing_token):
            return tenant_id

        message = error_of({"positional": positional, "variadic": variadic, "keywords": keywords}[kind])

        assert "'shop.sync' takes its fencing token as" in message
        assert "*, fencing_token" in message

    @pytest.mark.parametrize(("place", "next_one"), [("middle", "full=False"), ("rest", "*rest")])
    def test_that_other_arguments_by_position_would_reach_is_refused(self, error_of, place, next_one):
        def in_the_middle(tenant_id, fencing_token=None, full=False):
            return tenant_id

        def before_the_rest(tenant_id, fencing_token=None, *rest):
            return tenant_id

        message = error_of(in_the_middle if place == "middle" else before_the_rest)

        assert f"in front of {next_one!r}, which a caller may give by position" in message

    def test_may_stand_last_by_position_before_others_by_keyword(self, declare):
        def sync(tenant_id, fencing_token=None, *, full=False, **more):
            return tenant_id

        assert TaskOptions.of(declare(sync)).inject_as == "fencing_token"
