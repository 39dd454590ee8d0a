"""What Celery's own task class for Django adds, for fenced tasks."""

from __future__ import annotations

from typing import Any

from celery_fence.errors import ConfigError


class OnCommit:
    """
    Sends a task when Django's transaction commits, by the methods of Celery's `DjangoTask`.

    With Django, Celery makes `DjangoTask` the base of every task that names no base;
    ``base=FencedTask`` names one, so its methods have to come along. Django is only
    imported when one of them is called.
    """

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Like `delay`, when the current transaction commits; at once without one, not after a rollback."""
        _django_task("delay_on_commit").delay_on_commit(self, *args, **kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Like `apply_async`, when the current transaction commits."""
        _django_task("apply_async_on_commit").apply_async_on_commit(self, *args, **kwargs)


def _django_task(method: str) -> Any:
    try:
        from celery.contrib.django.task import DjangoTask
    except ImportError as error:
        raise ConfigError(f"{method} needs Django, which is not installed.") from error
    return DjangoTask
