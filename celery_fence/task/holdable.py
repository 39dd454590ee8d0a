"""What a `hold` may be about: a key template with its values, or the signature of a fenced task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import current_app
from celery._state import _get_active_apps
from celery.canvas import Signature

from celery_fence.errors import ConfigError
from celery_fence.locking import current
from celery_fence.locking.keys import render_template
from celery_fence.locking.locker import Terms
from celery_fence.task.install import is_installed, terms_of
from celery_fence.task.options import TaskOptions
from celery_fence.task.settings import FenceSettings

FALLBACK = "default"
"""The name of the app that Celery makes up in a thread where there is none."""


def app_of(key: str | Signature) -> Any:
    """The task's own app, the running task's, Celery's current one, or the only one that has fenced tasks."""
    if isinstance(key, Signature):
        return key.app
    for frame in reversed(current.frames()):
        if frame.task is not None:
            return frame.task.app
    here = current_app._get_current_object()  # noqa: SLF001 - the app behind Celery's proxy
    if here.main != FALLBACK:
        return here
    fenced = [each for each in _get_active_apps() if is_installed(each) and each.main != FALLBACK]
    if len(fenced) == 1:
        return fenced[0]
    raise ConfigError(
        "hold() finds no Celery app in this thread: Celery keeps its current app for each thread. "
        "Pass app=..., or call app.set_default() where the app is made."
    )


def resolve(key: str | Signature, values: Mapping[str, Any] | None, app: Any) -> tuple[str, float, Terms]:
    """The rendered key that is to be held, its TTL in seconds and its terms. Raises `ConfigError`, `LockKeyError`."""
    if values is not None and not (isinstance(key, str) and isinstance(values, Mapping)):
        raise ConfigError(_wrong_values(key, values))
    if isinstance(key, str):
        settings = FenceSettings.of(app)
        terms = Terms(settings.renew_fraction, settings.max_hold)
        return render_template(key, values or {}), settings.ttl, terms
    if not isinstance(key, Signature):
        got = (
            f"the task itself: write hold({key.name}.s(...))"
            if hasattr(key, "lease_holder")
            else type(key).__name__
        )
        msg = f"hold() takes a key template or the signature of a fenced task, not {got}."
        raise ConfigError(msg)
    task = app.tasks.get(key.task)
    options = TaskOptions.of(task) if task is not None and hasattr(task, "lease_holder") else None
    if options is None or options.lock_key is None:
        raise ConfigError(f"hold() got a signature of {key.task!r}, which is not a fenced task of this app.")
    return options.lock_key.render(key.args or (), key.kwargs or {}), options.ttl, terms_of(options)


def _wrong_values(key: object, values: object) -> str:
    if isinstance(key, str):
        return f"hold({key!r}) takes the values of its placeholders as a mapping, such as {{'id': 7}}, not {values!r}."
    return "hold() takes values beside a template only: a signature has its own arguments."
