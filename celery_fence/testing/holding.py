"""Somebody else who holds a key, so that a test can see a miss."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_fence.errors import ConfigError, Contended
from celery_fence.locking.store import Claim, Facts, Granted, Held
from celery_fence.task.install import runtime


@contextmanager
def held(app: Any, key: str, *, ttl: float = 60.0) -> Iterator[None]:
    """
    Let somebody else hold *key* (the text of a whole key) within the block, in the store of *app*.

    Unlike a `hold`, also for calls from this very block. Nothing renews this lease:
    the block must end within *ttl* seconds.

    Raises:
        Contended: the key isn't free.
        StoreUnavailable: the store didn't answer.

    """
    if "<" in key:
        raise ConfigError(f"held() takes the key itself, such as 'invoice:7', not a template: {key!r}.")
    claim = Claim(key, f"held-{uuid.uuid4().hex}", ttl, Facts(task_name="somebody else"))
    store = runtime(app).store(ttl)
    answer = store.acquire(claim)
    if not isinstance(answer, Granted):
        holder = answer.holder if isinstance(answer, Held) else None
        raise Contended(f"held() can't have {key!r}: it isn't free.", key=key, holder=holder)
    try:
        yield
    finally:
        store.release(claim, answer.token)
