"""The options of one task, completed by the settings of its app: one frozen value that has been checked."""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass
from inspect import Parameter
from types import FunctionType, MethodType
from typing import Any

from celery_fence.errors import ConfigError
from celery_fence.locking.keys import KeyRule, key_rule, signature_of
from celery_fence.locking.policies import Policy
from celery_fence.locking.suggest import hint
from celery_fence.task import given as rules
from celery_fence.task.limits import checked_max_hold, checked_ttl
from celery_fence.task.settings import LOST_POLICIES, FenceSettings
from celery_fence.task.written import (
    LATER,
    Written,
    class_of,
    is_on_decorator,
    name_of,
    own_options,
    raw_options,
    run_of,
)

_BY_POSITION = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """
    What is asked of one task's lease. Durations in seconds.

    *lost_delay* is how long a key stays closed after a lease expired unreleased.

    *lock_key* is None for a task that isn't fenced: `FencedTask` is the app's
    default base, and the task has no key. *inject_as* is the keyword under which
    the function takes the token, None if it doesn't. *miss_policy* is a policy
    object, *outage_policy* one as well, or ``"raise"`` or ``"run"``. *idempotency_key*
    makes the name of the record of work that is done once; None for other work.
    """

    lock_key: KeyRule | None
    idempotency_key: KeyRule | None
    ttl: float
    max_hold: float | None
    renew_fraction: float
    miss_policy: Policy
    lost_policy: str
    outage_policy: Policy | str
    inject_as: str | None
    lost_delay: float
    settings: FenceSettings

    @classmethod
    def of(cls, task: Any) -> TaskOptions:
        """
        The options of *task* as they are now; the same object as long as nothing has changed.

        `ConfigError` names the task, the option, the limit and the value.
        """
        settings = FenceSettings.of(task.app)
        raw = raw_options(task)
        known: _Resolved | None = vars(task).get("_fence_options")
        if known is not None and known.options.settings is settings and _same(known.raw, raw):
            return known.options
        options = resolve(task, settings, task.app)
        vars(task)["_fence_options"] = _Resolved(raw, options)
        return options


@dataclass(frozen=True, slots=True)
class _Resolved:
    raw: tuple[object, ...]
    options: TaskOptions


def resolve(task: Any, settings: FenceSettings, app: Any) -> TaskOptions:
    """The checked options of *task*, which may also be its class (as it is while it is being bound)."""
    written = Written.by(task)
    _refuse_later_ones(written)
    injected = _inject_as(written, settings, task)
    ttl = checked_ttl(app, given) if (given := written.get("lock_ttl")) else settings.ttl
    max_hold = _max_hold(written, settings, app)
    lock_key = _lock_key(written, task, app, without=injected)
    idempotency_key = _idempotency_key(written, task, without=injected) if lock_key else None
    _check_times(written, settings, ttl, max_hold)
    return TaskOptions(
        lock_key=lock_key,
        idempotency_key=idempotency_key,
        ttl=ttl,
        max_hold=max_hold,
        renew_fraction=settings.renew_fraction,
        miss_policy=rules.policy(given) if (given := written.get("miss_policy")) else settings.miss_policy,
        lost_policy=_lost_policy(written, settings),
        outage_policy=_outage_policy(written, settings),
        inject_as=injected if lock_key else None,
        lost_delay=_lost_delay(written, settings),
        settings=settings,
    )


def _same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return all(map(operator.is_, before, now))


def _refuse_later_ones(written: Written) -> None:
    for name, default in LATER.items():
        given = written.get(name)
        if given and (isinstance(given.value, bool) or given.value != default):
            raise given.not_yet(default)


def _max_hold(written: Written, settings: FenceSettings, app: Any) -> float | None:
    given = written.get("lock_max_hold", none_counts=True)
    return checked_max_hold(app, given) if given else settings.max_hold


def _lost_delay(written: Written, settings: FenceSettings) -> float:
    given = written.get("lock_lost_delay")
    return rules.seconds(given, least=0.0) if given else settings.lost_delay


def _check_times(written: Written, settings: FenceSettings, ttl: float, max_hold: float | None) -> None:
    if max_hold is not None and max_hold < ttl:
        raise ConfigError(
            f"Task {written.task!r} has a longest hold (lock_max_hold, fence_max_hold) of {max_hold:g} "
            f"seconds and a TTL (lock_ttl, fence_ttl) of {ttl:g}: the longest hold must be at least the TTL. "
            "Give the task a longer lock_max_hold or a shorter lock_ttl."
        )
    if settings.counter_retention < ttl:
        raise ConfigError(
            f"Task {written.task!r} has a lock_ttl of {ttl:g} seconds, longer than "
            f"fence_counter_retention, which is {settings.counter_retention:g}: a token's counter must "
            "live at least as long as its lease."
        )


def _lost_policy(written: Written, settings: FenceSettings) -> str:
    given = written.get("lost_policy")
    return rules.word(given, LOST_POLICIES) if given else settings.lost_policy


def _outage_policy(written: Written, settings: FenceSettings) -> Policy | str:
    given = written.get("outage_policy")
    return rules.outage_policy(given) if given else settings.outage_policy


def _lock_key(written: Written, task: Any, app: Any, *, without: str | None) -> KeyRule | None:
    given = written.get("lock_key")
    if given is None:
        _refuse_missing_key(task, app)
        return None
    spec = given.value
    if isinstance(spec, list | tuple | set | frozenset):
        raise ConfigError(
            f"{given.place} is a list of keys: this version of celery-fence can't do that yet. "
            "Give one key, written as one text such as 'tenant:<tenant_id>'."
        )
    return _rule(given, written, task, without=without)


def _idempotency_key(written: Written, task: Any, *, without: str | None) -> KeyRule | None:
    given = written.get("idempotency_key")
    if given is None:
        return None
    try:
        return _rule(given, written, task, without=without, slots=True)
    except ConfigError as error:
        said = str(error)
        if not said.startswith("lock_key"):
            raise
        raise ConfigError(f"idempotency_key{said.removeprefix('lock_key')}") from error


def _rule(
    given: rules.Given, written: Written, task: Any, *, without: str | None, slots: bool = False
) -> KeyRule:
    spec = given.value
    if not isinstance(spec, str) and not callable(spec):
        raise given.wrong("a template such as 'tenant:<tenant_id>', or a function of the task's arguments")
    if isinstance(spec, FunctionType) and next(iter(inspect.signature(spec).parameters), "") == "self":
        spec = MethodType(spec, task)
    signature = signature_of(run_of(task), without=without)
    return key_rule(spec, signature=signature, task=written.task, slots=slots)


def _refuse_missing_key(task: Any, app: Any) -> None:
    """Where `FencedTask` is the default base of the app's tasks, one without a word of ours is simply not fenced."""
    if not issubclass(class_of(task), app.Task):
        raise ConfigError(
            f"Task {name_of(task)!r} is fenced, but has no lock_key. Say what it works on, for example "
            "lock_key='tenant:<tenant_id>:sync'; a template without placeholders is one lock for all runs."
        )
    for name in own_options(task):
        raise ConfigError(
            f"Task {name_of(task)!r} has {name}, but no lock_key, so it would not be fenced. Give it one, "
            f"for example lock_key='tenant:<tenant_id>:sync', or leave {name} out."
        )


def _inject_as(written: Written, settings: FenceSettings, task: Any) -> str | None:
    given = written.get("inject_as", none_counts=True)
    keyword = rules.keyword_name(given) if given else settings.inject_as
    parameters = signature_of(run_of(task)).parameters
    if keyword is None:
        return None
    if keyword in parameters:
        return _by_keyword(keyword, list(parameters.values()), written.task)
    if given is None:
        return None
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        return keyword
    if is_on_decorator(task, "inject_as"):
        raise ConfigError(
            f"{given.place} is {keyword!r}, but its function has no parameter of that name."
            f"{hint(keyword, parameters)} Add one, as in def {_function_name(task)}(..., *, {keyword})."
        )
    return None


def _by_keyword(name: str, parameters: list[Parameter], task: str) -> str:
    """*name*, if it can be given by keyword, whatever else a caller gives by position."""
    place = [each.name for each in parameters].index(name)
    parameter, after = parameters[place], parameters[place + 1 :]
    if parameter.kind is Parameter.KEYWORD_ONLY:
        return name
    why = f"{parameter.kind.description}"
    if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
        reached = [each for each in after if each.kind in _BY_POSITION]
        if not reached:
            return name
        why = f"in front of {str(reached[0])!r}, which a caller may give by position"
    raise ConfigError(
        f"Task {task!r} takes its fencing token as {str(parameter)!r}, {why}: it "
        f"is injected by keyword, so write def ...(..., *, {name}), or set inject_as=None."
    )


def _function_name(task: Any) -> str:
    return str(getattr(run_of(task), "__name__", "task"))
