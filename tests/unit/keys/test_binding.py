"""Position, name and default of an argument give one key, whatever is around the function."""

import functools

import pytest
from celery import Task, shared_task

from celery_fence.errors import ConfigError
from celery_fence.locking.keys import signature_of
from tests.unit.keys.rules import Order, app, rule, sync


class TestBinding:
    def test_position_name_and_default_give_one_key(self):
        by = rule("tenant:<tenant_id>:<full>:<region>")
        forms = [
            ((7,), {}),
            ((7, False), {}),
            ((), {"tenant_id": 7}),
            ((7,), {"region": "eu", "full": False}),
        ]

        assert {by.render(*form) for form in forms} == {"tenant:7:false:eu"}

    def test_self_of_a_bound_task_never_counts(self):
        @app.task(bind=True)
        def bound(self, tenant_id): ...

        assert rule("tenant:<tenant_id>:sync", bound.run).render((7,), {}) == "tenant:7:sync"
        assert "self" not in signature_of(bound.run).parameters

    def test_autoretry_keeps_the_signature(self):
        @app.task(bind=True, autoretry_for=(OSError,))
        def retried(self, tenant_id, mode="full"): ...

        assert rule("<tenant_id>:<mode>", retried.run).render((7,), {}) == "7:full"

    def test_pydantic_tasks_keep_the_signature(self):
        @app.task(pydantic=True)
        def charge(order: Order, mode: str = "full"): ...

        assert rule("<order[id]>:<mode>", charge.run).render(({"id": 7},), {}) == "7:full"

    def test_shared_and_class_based_tasks_are_bound_like_any_other(self):
        @shared_task
        def shared(tenant_id): ...

        class ClassBased(Task):
            name = "class-based"

            def run(self, tenant_id): ...

        for run in (shared.run, app.register_task(ClassBased()).run):
            assert rule("tenant:<tenant_id>", run).render((7,), {}) == "tenant:7"

    def test_a_wrapped_function_shows_its_own_signature(self):
        @functools.wraps(sync)
        def wrapper(*args, **kwargs): ...

        assert rule("<tenant_id>", wrapper).render((7,), {}) == "7"

    def test_the_injected_parameter_is_neither_asked_for_nor_part_of_the_digest(self):
        def fenced(tenant_id, *, fencing_token): ...

        def plain(tenant_id): ...

        digests = [
            rule("<arguments>", fenced, without="fencing_token").render((7,), {}),
            rule("<arguments>", plain).render((7,), {}),
        ]
        assert digests[0] == digests[1]
        with pytest.raises(ConfigError, match="no parameter 'fencing_token'"):
            rule("<fencing_token>", fenced, without="fencing_token")

    def test_a_catch_all_that_is_named_like_the_injected_parameter_stays(self):
        def catch_all(**fencing_token): ...

        assert rule("<x>", catch_all, without="fencing_token").render((), {"x": 1}) == "1"

    def test_variadic_arguments_are_a_list_and_a_dict(self):
        def task(*rows, **options): ...

        assert (
            rule("<rows[1]>:<options[mode]>:<mode>", task).render((1, 2), {"mode": "full"}) == "2:full:full"
        )

    def test_a_call_that_does_not_fit_the_function_has_no_key(self):
        with pytest.raises(TypeError, match=r"^billing\.sync\(\): missing a required argument: 'tenant_id'"):
            rule("<tenant_id>").render((), {})

    def test_what_has_no_signature_is_refused(self):
        with pytest.raises(ConfigError, match="no signature"):
            signature_of(42)
