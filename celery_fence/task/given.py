"""One value as a user gave it, and what it has to be."""

from __future__ import annotations

import keyword
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery_fence.errors import ConfigError
from celery_fence.locking import policies
from celery_fence.locking.suggest import hint

if TYPE_CHECKING:
    from collections.abc import Collection

YEAR: Final = 366 * 86400.0
"""Seconds. No time that celery-fence keeps is longer: what is longer is a mistake of units."""

LATER_POLICIES: Final = (policies.Wait, policies.Park, policies.Coalesce)


@dataclass(frozen=True, slots=True)
class Given:
    """A *value* and the *place* it was written at, worded so that a message can start with it."""

    place: str
    value: Any

    def wrong(self, must: str, advice: str = "") -> ConfigError:
        """The error that names place and value, says what it *must* be, and what to do."""
        shown = self.value if isinstance(self.value, bool | float | int | str | None) else type(self.value)
        return ConfigError(f"{self.place} is {shown!r}, but must be {must}.{advice}")

    def not_yet(self, default: object) -> ConfigError:
        """The error for what a later version will do."""
        return ConfigError(
            f"{self.place} is {self.value!r}: this version of celery-fence can't do that yet. "
            f"Leave it out, or at {default!r}."
        )


def seconds(given: Given, *, least: float, most: float = YEAR) -> float:
    """A duration between *least* and *most*; text and booleans are refused, not converted."""
    must = f"a number of seconds from {least:g} to {most:g}"
    value = given.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise given.wrong(must, _without_quotes(value))
    if not math.isfinite(value) or not least <= value <= most:
        raise given.wrong(must)
    return float(value)


def fraction(given: Given, *, least: float, most: float) -> float:
    """A part of one, between *least* and *most*."""
    must = f"a number from {least:g} to {most:g}"
    value = given.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise given.wrong(must, _without_quotes(value))
    if not least <= value <= most:
        raise given.wrong(must)
    return float(value)


def flag(given: Given) -> bool:
    """True or False, and nothing that only looks like it."""
    if not isinstance(given.value, bool):
        raise given.wrong("True or False")
    return given.value


def text(given: Given, *, must: str = "a text that isn't empty", banned: str = "") -> str:
    """A text with something in it, no space or control character, and none of the *banned* ones."""
    value = given.value
    if not isinstance(value, str) or not value:
        raise given.wrong(must)
    if any(char in banned or char.isspace() or not char.isprintable() for char in value):
        raise given.wrong(must)
    return value


def word(given: Given, words: Collection[str]) -> str:
    """One of *words*."""
    must = "one of " + ", ".join(repr(each) for each in words)
    if not isinstance(given.value, str):
        raise given.wrong(must)
    if given.value not in words:
        raise given.wrong(must, hint(given.value, words))
    return given.value


def keyword_name(given: Given) -> str | None:
    """A name that a function's parameter can have, or None."""
    value = given.value
    if value is None:
        return None
    if not isinstance(value, str) or not value.isidentifier() or keyword.iskeyword(value) or value == "self":
        raise given.wrong("the name of a parameter, such as 'fencing_token', or None to inject nothing")
    return value


def policy(given: Given) -> policies.Policy:
    """A miss policy, by name or as it is; those of a later version are refused, also inside ``then=``."""
    try:
        found = policies.as_policy(given.value)
    except ConfigError as error:
        raise ConfigError(f"{given.place}: {error}") from error
    for stage in policies.stages(found):
        if isinstance(stage, LATER_POLICIES):
            raise ConfigError(
                f"{given.place} is {given.value!r}: {type(stage).__name__} comes with a later version of "
                "celery-fence, not yet with this one. Use Retry, Requeue, DeadLetter, Skip or Raise."
            )
    return found


def outage_policy(given: Given) -> policies.Policy | str:
    """``"raise"``, ``"run"``, or the policy that decides when the message comes back."""
    if given.value in ("raise", "run"):
        return str(given.value)
    if isinstance(given.value, str) and given.value not in policies.NAMES:
        raise given.wrong(
            "'retry', 'raise', 'run' or a policy such as Retry(max_wait=300)",
            hint(given.value, ("retry", "raise", "run"), {"open": "run", "closed": "retry", "fail": "raise"}),
        )
    found = policy(given)
    return "raise" if isinstance(found, policies.Raise) else found


def _without_quotes(value: object) -> str:
    """The advice for a number written as a text."""
    try:
        return f" Write {float(value):g}, without quotes." if isinstance(value, str) else ""
    except ValueError:
        return ""
