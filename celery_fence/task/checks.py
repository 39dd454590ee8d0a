"""
What is wrong with an app, before any message is.

A task is checked when it is bound, so a mistake shows where the task is imported:
in a client, a test, a worker. A worker checks its app once more when it starts, and
prints every finding at once. Nothing is started and nothing is asked of the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from celery import Task

from celery_fence.errors import ConfigError
from celery_fence.locking.keys import warnings_for
from celery_fence.locking.suggest import nearest
from celery_fence.stores import from_url
from celery_fence.task.options import TaskOptions, resolve
from celery_fence.task.settings import NAMES, FenceSettings
from celery_fence.task.spelling import respelled, spellings, unknown_settings
from celery_fence.task.written import OPTIONS, class_of, name_of

SYNONYMS: Final = {
    "lock_name": "lock_key",
    "lock_id": "lock_key",
    "lock_template": "lock_key",
    "lock_args": "lock_key",
    "lock_kwargs": "lock_key",
    "lock_max_time": "lock_max_hold",
    "lock_hold": "lock_max_hold",
    "lock_limit": "lock_holders",
    "lock_concurrency": "lock_holders",
    "lock_policy": "miss_policy",
    "policy_on_miss": "miss_policy",
    "on_miss_policy": "miss_policy",
    "lock_on_miss": "miss_policy",
    "lost_delay": "lock_lost_delay",
    "inject_token": "inject_as",
    "inject_token_as": "inject_as",
    "inject_kwarg": "inject_as",
    "fence_token_kwarg": "inject_as",
    "fence_key": "lock_key",
    "fence_ttl": "lock_ttl",
    "fence_max_hold": "lock_max_hold",
    "fence_miss_policy": "miss_policy",
    "fence_lost_policy": "lost_policy",
    "fence_outage_policy": "outage_policy",
    "fence_inject_as": "inject_as",
}
"""What people, other libraries and our settings call the options: for hints only."""

_OURS: Final = re.compile(
    r"(lock|miss|lost|outage|fence|inject|idempotency)_|policy_on_miss$|on_miss_policy$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: an *error* keeps a worker from starting, a *warning* doesn't."""

    level: Literal["error", "warning"]
    text: str


def check_task(task: Any, app: Any) -> None:
    """
    Raise `ConfigError` if *task*, or its class, can't be fenced as it is declared.

    A class without a body of its own, as a base class is, has nothing to check yet.
    """
    cls = class_of(task)
    if getattr(cls, "run", None) is Task.run:
        return
    for error in unknown_options(cls):
        raise error
    resolve(task, FenceSettings.of(app), app)


def check_app(app: Any, *, processes: int = 1) -> list[Finding]:
    """Everything wrong with *app* in a worker with that many pool *processes*; errors first."""
    found = [Finding("error", str(error)) for error in unknown_settings(app, NAMES)] or _settings_error(app)
    if not found:
        found = [*_store(FenceSettings.of(app), processes), *_tasks(app)]
    found += [Finding("warning", text) for text in _outside_the_namespace(app)]
    return sorted(found, key=lambda finding: finding.level)


def unknown_options(cls: type) -> list[ConfigError]:
    """
    One error for every option given to the decorator that looks like ours and isn't.

    Only the decorator's: a base class may have attributes of its own.
    """
    if not vars(cls).get("_decorated"):
        return []
    return [
        ConfigError(f"Task {name_of(cls)!r}: celery-fence has no option {name!r}.{_hint(name)}")
        for name in vars(cls)
        if _OURS.match(name) and name not in OPTIONS
    ]


def _hint(name: str) -> str:
    found = nearest(name, OPTIONS, SYNONYMS)
    return f" Did you mean {found!r}?" if found else f" The options are {', '.join(OPTIONS)}."


def _settings_error(app: Any) -> list[Finding]:
    try:
        FenceSettings.of(app)
    except ConfigError as error:
        return [Finding("error", str(error))]
    return []


def _store(settings: FenceSettings, processes: int) -> Iterator[Finding]:
    try:
        store = from_url(settings.url, prefix=settings.prefix, counter_retention=settings.counter_retention)
    except ConfigError as error:
        yield Finding("error", str(error))
        return
    if processes > 1 and getattr(store, "single_process", False):
        yield Finding(
            "error",
            f"fence_url is {store.description!r}, which exists once in each process, and this worker has "
            f"{processes} of them: they wouldn't exclude each other. Use a Redis, or -P solo or threads.",
        )


def _tasks(app: Any) -> Iterator[Finding]:
    from celery_fence.task.fenced import FencedTask  # checks its tasks by this module

    for task in app.tasks.values():
        if not isinstance(task, FencedTask):
            continue
        try:
            check_task(task, app)
            yield from _advice(TaskOptions.of(task))
        except ConfigError as error:
            yield Finding("error", str(error))


def _advice(options: TaskOptions) -> Iterator[Finding]:
    if options.lock_key is not None:
        yield from (Finding("warning", text) for text in warnings_for(options.lock_key))


def _outside_the_namespace(app: Any) -> Iterator[str]:
    """With a namespace, a bare ``FENCE_TTL`` may be another package's: said, not refused."""
    prefix = app.conf.prefix
    if not prefix:
        return
    for spelling in spellings(app):
        if not spelling.is_read and spelling.name in NAMES:
            yield (
                f"{spelling.written!r} among the settings is not read by Celery. If it is meant for "
                f"celery-fence, write it as {respelled(spelling.name, prefix)!r}."
            )
