"""How the name of a setting is written, and what was probably meant by a wrong one."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from celery_fence.errors import ConfigError
from celery_fence.locking.suggest import nearest
from celery_fence.task.given import Given

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

ABSENT: Final = object()
"""The value of a setting that nobody has written."""

SYNONYMS: Final[Mapping[str, str]] = {
    "fence_enabled": "fence_mode",
    "fence_disabled": "fence_mode",
    "fence_policy": "fence_miss_policy",
    "fence_policy_on_miss": "fence_miss_policy",
    "fence_on_miss": "fence_miss_policy",
    "fence_redis_url": "fence_url",
    "fence_store": "fence_url",
    "fence_store_url": "fence_url",
    "fence_backend": "fence_url",
    "fence_key_prefix": "fence_prefix",
    "fence_namespace": "fence_prefix",
    "fence_token_kwarg": "fence_inject_as",
    "fence_token_name": "fence_inject_as",
    "fence_dlq": "fence_dead_letter_queue",
    "fence_heartbeat": "fence_renew_fraction",
    "fence_heartbeat_interval": "fence_renew_fraction",
    "fence_renew_interval": "fence_renew_fraction",
}
"""What people and other libraries call them: for hints only."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """
    A setting as the user has *written* it, and its own *name* in lower case.

    *is_read*: Celery would read it under this spelling. *in_namespace*: it has the
    prefix that the app's settings share, or no prefix was asked for.
    """

    written: str
    name: str
    is_read: bool
    in_namespace: bool


def respelled(name: str, prefix: str | None) -> str:
    """*name* as a user of this namespace *prefix* writes it: ``CELERY_FENCE_TTL`` for ``fence_ttl``."""
    if not prefix:
        return name
    whole = prefix + name
    return whole.upper() if prefix.isupper() else whole.lower()


def setting(app: Any, name: str) -> Given:
    """The value of the setting *name*, `ABSENT` without one, and the name as the user wrote it."""
    conf = app.conf
    written = respelled(name, conf.prefix)
    if name in conf.changes and written not in conf.changes:
        written = name
    return Given(f"Celery setting {written!r}", conf.get(name, ABSENT))


def spellings(app: Any) -> list[Spelling]:
    """Every setting of *app* that begins with ``fence_``, whatever its case and namespace."""
    conf = app.conf.finalize()
    prefix = conf.prefix or ""
    return [
        spelling
        for key in conf.keys()  # noqa: SIM118 - a configuration is no dict: it lists its keys only here
        if isinstance(key, str) and (spelling := _spelling(key, prefix)) is not None
    ]


def unknown_settings(app: Any, names: Collection[str]) -> list[ConfigError]:
    """One error for every ``fence_*`` setting that isn't among *names*, or that Celery would never read."""
    return [
        _unknown(spelling, names, app.conf.prefix)
        for spelling in spellings(app)
        if not (spelling.is_read and spelling.name in names) and not _is_somebody_elses(app, spelling)
    ]


def _spelling(key: str, prefix: str) -> Spelling | None:
    lower = key.lower()
    inside = lower.startswith(prefix.lower())
    name = lower[len(prefix) :] if inside else lower
    if not prefix and lower.startswith("celery_fence_"):
        return Spelling(key, lower.removeprefix("celery_"), is_read=False, in_namespace=True)
    if not name.startswith("fence_"):
        return None
    is_read = key in (name, respelled(name, prefix))
    return Spelling(key, name, is_read=is_read, in_namespace=inside or is_read)


def _is_somebody_elses(app: Any, spelling: Spelling) -> bool:
    """
    Whether the name isn't ours to judge.

    That is ``FENCE_X`` outside of the namespace of our settings, and a function, class
    or module that a module of settings happens to have.
    """
    value = app.conf.get(spelling.written)
    return not spelling.in_namespace or isinstance(value, FunctionType | ModuleType | type)


def _unknown(spelling: Spelling, names: Collection[str], prefix: str | None) -> ConfigError:
    if spelling.name in names:
        right = respelled(spelling.name, prefix)
        advice = "" if prefix else ", or give config_from_object a namespace, as in namespace='CELERY'"
        return ConfigError(
            f"Celery setting {spelling.written!r} is never read by Celery: write it as {right!r}{advice}."
        )
    found = nearest(spelling.name, names, SYNONYMS)
    known = ", ".join(respelled(name, prefix) for name in names)
    hint = f" Did you mean {respelled(found, prefix)!r}?" if found else f" The settings are {known}."
    return ConfigError(f"There is no Celery setting {spelling.written!r} in celery-fence.{hint}")
