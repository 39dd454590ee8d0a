"""The key of a task is made from its own arguments, and is refused where it can't be right."""

from __future__ import annotations

import pytest
from celery import shared_task
from pydantic import BaseModel

from celery_fence.errors import ConfigError, LockKeyError
from celery_fence.task.fenced import FencedTask
from celery_fence.task.options import TaskOptions


class Order(BaseModel):
    id: int


class TestTheKey:
    def test_is_made_from_the_tasks_own_arguments(self, declare):
        rule = TaskOptions.of(declare()).lock_key

        assert rule.render((7,), {}) == rule.render((), {"tenant_id": 7}) == "tenant:7"

    def test_of_a_bound_task_knows_no_self(self, declare):
        def sync(self, tenant_id):
            return tenant_id

        assert TaskOptions.of(declare(sync, bind=True)).lock_key.render((7,), {}) == "tenant:7"

    def test_of_a_task_with_autoretry(self, declare):
        task = declare(autoretry_for=(ValueError,))

        assert TaskOptions.of(task).lock_key.render((7,), {}) == "tenant:7"

    def test_of_a_shared_task(self, app):
        @shared_task(name="shop.shared", base=FencedTask, lock_key="tenant:<tenant_id>")
        def shared(tenant_id):
            return tenant_id

        assert TaskOptions.of(app.tasks["shop.shared"]).lock_key.render((7,), {}) == "tenant:7"

    def test_of_a_pydantic_task_comes_from_the_message(self, declare):
        def sync(order: Order):
            return order

        rule = TaskOptions.of(declare(sync, pydantic=True, lock_key="order:<order[id]>")).lock_key

        assert rule.render(({"id": 7},), {}) == "order:7"

    def test_of_a_class_based_task(self, app):
        class Sync(FencedTask):
            name = "shop.sync_class"
            lock_key = "tenant:<tenant_id>"

            def run(self, tenant_id):
                return tenant_id

        task = app.register_task(Sync())

        assert TaskOptions.of(task).lock_key.render((7,), {}) == "tenant:7"

    def test_may_be_a_function_of_the_arguments(self, declare):
        task = declare(lock_key=lambda tenant_id: ("tenant", tenant_id))

        assert TaskOptions.of(task).lock_key.render((7,), {}) == "tenant:7"

    def test_may_be_a_method_of_a_class_based_task(self, app):
        class Sync(FencedTask):
            name = "shop.sync_method"
            region = "eu"

            def lock_key(self, tenant_id):
                return (self.region, tenant_id)

            def run(self, tenant_id):
                return tenant_id

        task = app.register_task(Sync())

        assert TaskOptions.of(task).lock_key.render((7,), {}) == "eu:7"

    def test_an_argument_it_cant_take_is_named(self, declare):
        with pytest.raises(LockKeyError, match=r"shop\.sync.*tenant_id"):
            TaskOptions.of(declare()).lock_key.render((object(),), {})

    @pytest.mark.parametrize(
        ("lock_key", "says"),
        [
            ("tenant:<tenant>", "Did you mean 'tenant_id'?"),
            ("tenant:{tenant_id}", "<tenant_id>"),
            ("tenant:<fencing_token>", "fencing_token"),
            ("", "shop.sync"),
            (7, "a template such as"),
            (["tenant:<tenant_id>", "global"], "yet"),
            (("tenant:<tenant_id>", "global"), "yet"),
        ],
    )
    def test_that_cant_be_right_is_refused_when_the_task_is_declared(self, error_of, lock_key, says):
        message = error_of(lock_key=lock_key)

        assert "'shop.sync'" in message
        assert says in message

    @pytest.mark.parametrize("lock_key", [None, ...])
    def test_has_to_be_there(self, app, lock_key):
        options = {} if lock_key is ... else {"lock_key": lock_key}

        with pytest.raises(ConfigError, match=r"'shop\.keyless' is fenced, but has no lock_key.*lock_key='"):

            @app.task(name="shop.keyless", base=FencedTask, lazy=False, **options)
            def keyless(tenant_id):
                return tenant_id

    def test_a_class_based_task_without_one_is_refused_too(self, app):
        class Keyless(FencedTask):
            def run(self, tenant_id):
                return tenant_id

        with pytest.raises(ConfigError, match=r"Keyless' is fenced, but has no lock_key"):
            app.register_task(Keyless())
