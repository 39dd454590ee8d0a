"""A fenced task that is declared and bound, as a module of tasks does when it is imported."""

from __future__ import annotations

import pytest
from celery import Celery, _state

from celery_fence.errors import ConfigError
from celery_fence.task.fenced import FencedTask


@pytest.fixture(autouse=True)
def _tasks_stay_with_their_app(monkeypatch):
    """Celery gives the tasks of one app to all later ones; each test has its own."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


@pytest.fixture
def app():
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.fence_url = "memory://"
    return app


@pytest.fixture
def declare(app):
    """Declare and bind a fenced task, as a module of tasks does when it is imported."""

    def declare(fun=None, /, **options):
        def sync(tenant_id, *, fencing_token=None):
            return fencing_token

        options = {"lock_key": "tenant:<tenant_id>", "base": FencedTask, "lazy": False} | options
        return app.task(name="shop.sync", **options)(fun or sync)

    return declare


@pytest.fixture
def error_of(declare):
    def error_of(fun=None, /, **options):
        with pytest.raises(ConfigError) as caught:
            declare(fun, **options)
        return str(caught.value)

    return error_of
