"""What a task says about its lease, as it was written: by decorator, in its class, or in a base class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final

from celery_fence.task.given import Given

UNSET: Final = object()
"""The task doesn't say: the setting counts. (None is a value of `lock_max_hold` and `inject_as`.)"""

LATER: Final[Mapping[str, object]] = {
    "lock_holders": 1,
    "lock_cooldown": 0,
    "fence_mode": "enforce",
}
"""Options that a later version brings, and the one value that each may have until then."""

OPTIONS: Final = (
    "lock_key",
    "lock_ttl",
    "lock_max_hold",
    "miss_policy",
    "lost_policy",
    "outage_policy",
    "inject_as",
    "lock_lost_delay",
    "idempotency_key",
    *LATER,
)


@dataclass(frozen=True, slots=True)
class Written:
    """The options that *task* has itself, by decorator, class or base class."""

    task: str
    values: Mapping[str, Any]

    @classmethod
    def by(cls, task: Any) -> Written:
        """Read without binding: a function given as `lock_key` must not become a method of the task."""
        found = zip(OPTIONS, raw_options(task), strict=True)
        return cls(name_of(task), {name: value for name, value in found if value is not UNSET})

    def get(self, name: str, *, none_counts: bool = False) -> Given | None:
        """The option, or None if the setting counts. A value of None says so too, unless *none_counts*."""
        value = self.values.get(name, UNSET)
        if value is UNSET or (value is None and not none_counts):
            return None
        return Given(f"Option {name!r} of task {self.task!r}", value)


def raw_options(task: Any) -> tuple[object, ...]:
    """What *task* has under each of `OPTIONS`, in that order, without binding functions to it."""
    cls, own = class_of(task), {} if isinstance(task, type) else vars(task)
    raw = tuple([getattr(cls, name, UNSET) for name in OPTIONS])
    if own.keys().isdisjoint(OPTIONS):
        return raw
    return tuple(own.get(name, value) for name, value in zip(OPTIONS, raw, strict=True))


def own_options(task: Any) -> list[str]:
    """The options that *task* has itself, by decorator or in its body; those of its base classes don't count."""
    own = vars(class_of(task))
    return [name for name in OPTIONS if own.get(name) is not None]


def is_on_decorator(task: Any, name: str) -> bool:
    """Whether the option *name* was given to the decorator, not by a base class that other tasks share."""
    own = vars(class_of(task))
    return name in own and bool(own.get("_decorated"))


def class_of(task: Any) -> type:
    """The class of *task*, which may be that class: Celery binds the class before the task is used."""
    return task if isinstance(task, type) else task.__class__  # type() of a proxy is the proxy's


def name_of(task: Any) -> str:
    """What people call *task*; its class while it has no name yet."""
    if task.name:
        return str(task.name)
    cls = class_of(task)
    return f"{cls.__module__}.{cls.__qualname__}"


def run_of(task: Any) -> Callable[..., Any]:
    """The function of *task* (or of its class) without ``self``."""
    if not isinstance(task, type):
        return task.run  # type: ignore[no-any-return]
    run = inspect.getattr_static(task, "run")
    return MethodType(run, task) if isinstance(run, FunctionType) else task.run  # type: ignore[attr-defined]
