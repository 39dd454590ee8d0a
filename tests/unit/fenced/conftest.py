"""One execution of a fenced task, run as a pool does but in this process."""

from __future__ import annotations

import pytest

from celery_fence import FencedTask, StoreUnavailable
from celery_fence.stores.memory import MemoryStore


@pytest.fixture
def task(app):
    """A fenced task on ``job:<key>``, its options as asked for; *does* is called in its body."""

    def make(does=lambda self: None, *, name="the task", base=FencedTask, **options):
        @app.task(base=base, bind=True, lock_key="job:<key>", name=name, **options)
        def body(self, key, *, fencing_token):
            make.tokens.append(fencing_token)
            return does(self)

        return body

    make.tokens = []
    return make


@pytest.fixture
def away(monkeypatch):
    """The store is out of reach."""

    def acquire(self, *_):
        raise StoreUnavailable("no route to the store")

    monkeypatch.setattr(MemoryStore, "acquire", acquire)
