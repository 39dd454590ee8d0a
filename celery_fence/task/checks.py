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
from celery_fence.locking.policies import stages
from celery_fence.locking.suggest import nearest
from celery_fence.stores import from_url
from celery_fence.task.given import raise_all
from celery_fence.task.options import TaskOptions, resolve
from celery_fence.task.settings import NAMES, FenceSettings, visibility_timeout, wrong_settings
from celery_fence.task.spelling import respelled, spellings
from celery_fence.task.written import OPTIONS, class_of, name_of, own_options

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

STRANGERS: Final = {
    "lock": "'lock_key'",
    "once": "'lock_key'",
    "idempotent_key": "'idempotency_key'",
    "idempotence_key": "'idempotency_key'",
    "idempotency": "'idempotency_key'",
    "unique_on": "'lock_key'",
    "ttl": "'lock_ttl'",
    "timeout": "'lock_ttl', or Celery's 'time_limit'",
    "policy": "'miss_policy'",
    "on_miss": "'miss_policy'",
    "blocking": "'miss_policy'",
    "blocking_timeout": "'miss_policy'",
    "raise_on_duplicate": "'miss_policy'",
}
"""
What people and other libraries give to a decorator without any prefix, and what they mean by it.

Celery takes each as an attribute of the task, so nothing else would say that it does nothing.
"""

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
    fenced = getattr(cls, "lock_key", None) is not None or not issubclass(cls, app.Task)
    raise_all(unknown_options(cls, fenced=fenced))
    resolve(task, FenceSettings.of(app), app)


def check_app(app: Any, *, processes: int = 1) -> list[Finding]:
    """Everything wrong with *app* in a worker with that many pool *processes*; errors first."""
    found = [Finding("error", str(error)) for error in wrong_settings(app)] or _settings_error(app)
    if not found:
        found = [*_store(FenceSettings.of(app), processes), *_tasks(app)]
    found += [Finding("warning", text) for text in _outside_the_namespace(app)]
    return sorted(found, key=lambda finding: finding.level)


def unknown_options(cls: type, *, fenced: bool = True) -> list[ConfigError]:
    """
    One error for every option of *cls* that looks like ours and isn't.

    What was given to the decorator is judged, and the body of a class that has a
    `lock_key` of its own, there only what resembles an option: it may have attributes
    of its own, and so may base classes. *fenced*: whether `STRANGERS` are told, too.
    """
    own = vars(cls)
    names = [name for name in own if name not in OPTIONS and not _is_in_a_base(cls, name)]
    ours = [name for name in names if _OURS.match(name)]
    if own.get("_decorated"):
        strangers = [name for name in names if name in STRANGERS and fenced]
        return [_no_option(cls, name, _hint(name)) for name in (*ours, *strangers)]
    if own.get("lock_key") is None:
        return []
    typos = [name for name in ours if not _is_code(own[name]) and nearest(name, OPTIONS, SYNONYMS, alike=0.8)]
    return [_no_option(cls, name, _hint(name)) for name in typos]


def _no_option(cls: type, name: str, hint: str) -> ConfigError:
    return ConfigError(f"Task {name_of(cls)!r}: celery-fence has no option {name!r}.{hint}")


def _is_in_a_base(cls: type, name: str) -> bool:
    """Whether a base class has it, Celery's or the user's own; a hook like `on_miss` counts as one if it is one."""
    theirs = [vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)]
    return bool(theirs) and (not callable(theirs[0]) or callable(vars(cls)[name]))


def _is_code(value: object) -> bool:
    return callable(value) or isinstance(value, classmethod | property)


def _hint(name: str) -> str:
    found = nearest(name, OPTIONS, SYNONYMS)
    meant = STRANGERS.get(name) or (found and repr(found))
    return f" Did you mean {meant}?" if meant else f" The options are {', '.join(OPTIONS)}."


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
            yield from (Finding("warning", text) for text in _not_fenced(task))
            continue
        try:
            check_task(task, app)
            yield from _advice(task, TaskOptions.of(task))
        except ConfigError as error:
            yield Finding("error", str(error))


def _not_fenced(task: Any) -> Iterator[str]:
    """Celery takes any option of any task, so one of ours beside another base does nothing, and says nothing."""
    for name in own_options(task)[:1]:
        yield (
            f"Task {task.name!r} has {name}, but it is not fenced, since its base is not FencedTask. "
            f"Write @app.task(base=FencedTask, {name}=...), or leave {name} out."
        )


def _advice(task: Any, options: TaskOptions) -> Iterator[Finding]:
    if options.lock_key is not None:
        yield from (Finding("warning", text) for text in warnings_for(options.lock_key))
        yield from (Finding("warning", text) for text in _outlives_its_message(task, options))


def _outlives_its_message(task: Any, options: TaskOptions) -> Iterator[str]:
    """A message that waits in a worker and then runs is unacknowledged all that time, with late acknowledgement."""
    timeout = visibility_timeout(task.app)
    run = options.max_hold or task.time_limit
    if timeout is None or run is None or not task.acks_late:
        return
    wait = min(max(getattr(stage, "max_delay", 0) for stage in stages(options.miss_policy)), timeout / 2)
    if wait + run > timeout:
        yield (
            f"Task {task.name!r} may wait {wait:g} s and run {run:g} s, longer than the broker's visibility timeout "
            f"of {timeout:g} s: its message is then delivered again while it runs. The copy waits and doesn't run, "
            "but set a longer visibility_timeout in broker_transport_options."
        )


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
