"""The ``fence_*`` settings of an app, as one frozen value that has been checked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from celery_fence.errors import ConfigError
from celery_fence.locking.policies import Policy, Retry
from celery_fence.task import given as rules
from celery_fence.task.given import Given, raise_all
from celery_fence.task.limits import checked_max_hold, checked_ttl
from celery_fence.task.sources import Fingerprint, fingerprint
from celery_fence.task.spelling import ABSENT, respelled, setting, unknown_settings
from celery_fence.task.store_url import Nowhere, inherited_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOST_POLICIES: Final = ("retry", "raise", "flag")
MODES: Final = ("enforce", "shadow", "off")

_HOUR: Final = 3600.0
_RETRY: Final = Retry()
_CELERYS: Final = (
    "broker_url",
    "result_backend",
    "broker_transport_options",
    "broker_use_ssl",
    "redis_backend_use_ssl",
)
"""Celery's own settings that some of ours follow."""


@dataclass(frozen=True, slots=True)
class FenceSettings:
    """
    Every ``fence_*`` setting with its default. Durations in seconds.

    *miss_policy* is a policy object; *outage_policy* one as well, or ``"raise"`` or
    ``"run"``. *home* is where leases live, if that is known; see `url`.
    """

    home: str | Nowhere = field(repr=False)  # may hold a password
    ttl: float = 60.0
    renew_fraction: float = 1 / 3
    max_hold: float | None = None
    miss_policy: Policy = _RETRY
    lost_policy: str = "retry"
    lost_delay: float = 0.0
    outage_policy: Policy | str = _RETRY
    mode: str = "enforce"
    inject_as: str | None = "fencing_token"
    prefix: str = "fence"
    counter_retention: float = 7 * 86400.0
    done_retention: float = _HOUR
    record_retention: float = 86400.0
    remember_results: bool = True
    dead_letter_queue: str = "fence.dead_letters"

    @classmethod
    def of(cls, app: Any) -> FenceSettings:
        """
        The settings of *app* as they are now; the same object as long as none has changed.

        `ConfigError` names the setting as the user wrote it, the limit and the value.
        """
        now = fingerprint(app, WATCHED)
        known: _Resolved | None = getattr(app, "_fence_settings", None)
        if known is not None and known.fingerprint.same_as(now):
            return known.settings
        settings = _resolve(app)
        app._fence_settings = _Resolved(now, settings)  # noqa: SLF001 - state hangs on the app
        return settings

    @property
    def url(self) -> str:
        """Where leases live. `ConfigError` where no setting says, and no Redis of Celery's stands in."""
        if isinstance(self.home, Nowhere):
            raise ConfigError(self.home.advice)
        return self.home

    @property
    def place(self) -> tuple[str, str]:
        """Which leases these settings mean: the same key elsewhere is another one."""
        return self.url, self.prefix


@dataclass(frozen=True, slots=True)
class _Resolved:
    fingerprint: Fingerprint
    settings: FenceSettings


NAMES: Final = ("fence_url", *(f"fence_{each.name}" for each in fields(FenceSettings) if each.name != "home"))
WATCHED: Final = NAMES + _CELERYS


def wrong_settings(app: Any) -> list[ConfigError]:
    """One error for every setting of *app* that is misspelt or has a wrong value of its own."""
    return [*unknown_settings(app, NAMES), *_values(app)[1]]


def _resolve(app: Any) -> FenceSettings:
    values, wrong = _values(app)
    raise_all([*unknown_settings(app, NAMES), *wrong])
    home = values.pop("url", None) or inherited_url(app, setting=respelled("fence_url", app.conf.prefix))
    values.setdefault("done_retention", _done_retention(app))
    settings = FenceSettings(home=home, **values)
    _check_against_each_other(app, settings)
    return settings


def _values(app: Any) -> tuple[dict[str, Any], list[ConfigError]]:
    """The values that are given, and what is wrong with the others."""
    values: dict[str, Any] = {}
    wrong: list[ConfigError] = []
    for name, rule in _RULES.items():
        found = _found(app, name)
        if found is None:
            continue
        try:
            values[name] = rule(app, found)
        except ConfigError as error:
            wrong.append(error)
    return values, wrong


def _found(app: Any, name: str) -> Given | None:
    given = setting(app, f"fence_{name}")
    return None if given.value is ABSENT else given


def visibility_timeout(app: Any) -> float | None:
    """Seconds after which the broker delivers an unacknowledged message again; None for one that has no such time."""
    if str(app.conf.broker_url or "amqp").startswith(("amqp", "pyamqp", "memory")):
        return None
    options = app.conf.get("broker_transport_options")
    timeout = options.get("visibility_timeout", _HOUR) if isinstance(options, dict) else _HOUR
    return float(timeout) if isinstance(timeout, int | float) else _HOUR


def _done_retention(app: Any) -> float:
    """The longer of an hour and twice the time after which the broker redelivers."""
    return max(_HOUR, 2.0 * (visibility_timeout(app) or 0.0))


def _check_against_each_other(app: Any, settings: FenceSettings) -> None:
    if settings.max_hold is not None and settings.max_hold < settings.ttl:
        raise setting(app, "fence_max_hold").wrong(f"at least fence_ttl, which is {settings.ttl:g} seconds")
    if settings.counter_retention < settings.ttl:
        raise setting(app, "fence_counter_retention").wrong(
            f"at least fence_ttl, which is {settings.ttl:g} seconds"
        )


def _mode(_app: Any, given: Given) -> str:
    if isinstance(given.value, str) and given.value not in MODES:
        rules.word(given, MODES)
    if given.value != "enforce":
        raise given.not_yet("enforce")
    return "enforce"


def _url(_app: Any, given: Given) -> str | None:
    if given.value is None:
        return None
    if not isinstance(given.value, str) or "://" not in given.value:
        shown = "a text without '://'" if isinstance(given.value, str) else ""  # it may hold a password
        raise given.wrong("a URL such as 'redis://localhost:6379/0'", shown=shown)
    return given.value


_RULES: Final[Mapping[str, Callable[[Any, Given], Any]]] = {
    "ttl": checked_ttl,
    "renew_fraction": lambda _app, given: rules.fraction(given, least=0.05, most=0.8),
    "max_hold": checked_max_hold,
    "miss_policy": lambda _app, given: rules.policy(given),
    "lost_policy": lambda _app, given: rules.word(given, LOST_POLICIES),
    "lost_delay": lambda _app, given: rules.seconds(given, least=0.0),
    "outage_policy": lambda _app, given: rules.outage_policy(given),
    "mode": _mode,
    "inject_as": lambda _app, given: rules.keyword_name(given),
    "url": _url,
    "prefix": lambda _app, given: rules.text(
        given, must="a text without spaces and braces, such as 'fence'", banned="{}"
    ),
    "counter_retention": lambda _app, given: rules.seconds(given, least=60.0),
    "done_retention": lambda _app, given: rules.seconds(given, least=60.0),
    "record_retention": lambda _app, given: rules.seconds(given, least=60.0),
    "remember_results": lambda _app, given: rules.flag(given),
    "dead_letter_queue": lambda _app, given: rules.text(given, must="the name of a queue, without spaces"),
}
