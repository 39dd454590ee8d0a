"""A task with an idempotency key, in one process, and what is told of its runs."""

from __future__ import annotations

import pytest

from celery_fence import FencedTask, signals


@pytest.fixture
def charge(app):
    """A task on ``tenant:<tenant>`` for ``order:<order>``; what it *does* is its result."""

    def make(does=lambda self: {"charged": 5}, *, name="charge", **options):
        given = {
            "base": FencedTask,
            "lock_key": "tenant:<tenant>",
            "idempotency_key": "order:<order>",
            **options,
        }

        @app.task(bind=True, name=name, **given)
        def charge(self, tenant, order):
            make.runs.append((self.request.id, self.record_key))
            return does(self)

        return charge

    make.runs = []
    return make


@pytest.fixture
def stored(app):
    """The state and result of a message, as the result backend has them."""
    return lambda task_id: (app.AsyncResult(task_id).state, app.AsyncResult(task_id).result)


@pytest.fixture
def skips():
    told = []

    def note(sender, **facts):
        told.append((sender.name, facts))

    signals.task_skipped.connect(note)
    yield told
    signals.task_skipped.disconnect(note)
