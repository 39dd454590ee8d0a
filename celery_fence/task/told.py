"""
RETRY is told once, whatever Celery's tracer asks.

A message that comes back has its RETRY stored before its copy is published (see
`celery_fence.task.retries`), and its request then says that nothing more is to be
stored. The tracer asks the request only from Celery 5.6.3 on, and never where
`store_errors_even_if_ignored` is set:

    A stores RETRY, publishes the copy ... B runs it, stores FAILURE ... A's tracer stores RETRY

So the task's result backend takes no RETRY of a run that has told it.
"""

from __future__ import annotations

from typing import Any

from celery_fence.task.notes import RUN


class RetryToldOnce:
    """Goes before Celery's task class."""

    @property
    def backend(self) -> Any:
        """As Celery's; takes no RETRY of a run that has told it."""
        following: Any = super()
        # Celery asks for it at the end of each run: the less is done here, the less a soft time limit can strike.
        told = getattr(following.request.__dict__.get(RUN), "told", False)
        return WithoutRetry(following.backend) if told else following.backend

    @backend.setter
    def backend(self, value: Any) -> None:
        self._backend = value


class WithoutRetry:
    """A result backend that stores no RETRY."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def mark_as_retry(self, *_args: Any, **_kwargs: Any) -> None:
        """Store nothing."""
