"""One value as a user gave it, and what it has to be."""

from __future__ import annotations

import keyword
import math
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from celery_fence.errors import ConfigError
from celery_fence.locking import policies
from celery_fence.locking.suggest import hint

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

DAY: Final = 86400.0
YEAR: Final = 366 * DAY
"""Seconds. No time that celery-fence keeps is longer: what is longer is a mistake of units."""


_OUTAGE_SYNONYMS: Final = {
    "open": "run",
    "continue": "run",
    "ignore": "run",
    "closed": "retry",
    "fail": "raise",
}


@dataclass(frozen=True, slots=True)
class Given:
    """A *value* and the *place* it was written at, worded so that a message can start with it."""

    place: str
    value: Any

    def wrong(self, must: str, advice: str = "", *, shown: str = "") -> ConfigError:
        """The error that names place and value (or says *shown* of it), what it *must* be, and what to do."""
        return ConfigError(f"{self.place} is {shown or _in_words(self.value)}, but must be {must}.{advice}")

    def not_yet(self, default: object) -> ConfigError:
        """The error for what a later version will do."""
        return ConfigError(
            f"{self.place} is {self.value!r}: this version of celery-fence can't do that yet. "
            f"Leave it out, or at {default!r}."
        )


def raise_all(wrong: Sequence[ConfigError]) -> None:
    """Raise what is *wrong*, if anything is: one error as it is, several as one, each on a line of its own."""
    if len(wrong) > 1:
        raise ConfigError("\n".join(map(str, wrong)))
    for error in wrong:
        raise error


def seconds(given: Given, *, least: float, most: float = YEAR) -> float:
    """A duration between *least* and *most*; text and booleans are refused, not converted."""
    must = f"a number of seconds from {least:g} to {most:.0f}, which is {most / DAY:g} days"
    value = given.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise given.wrong(must, _as_a_number(value))
    if not math.isfinite(value) or not least <= value <= most:
        raise given.wrong(must)
    return float(value)


def fraction(given: Given, *, least: float, most: float) -> float:
    """A part of one, between *least* and *most*."""
    must = f"a number from {least:g} to {most:g}"
    value = given.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise given.wrong(must, _as_a_number(value))
    if not least <= value <= most:
        raise given.wrong(must)
    return float(value)


def count(given: Given) -> int:
    """A whole number that isn't negative."""
    if isinstance(given.value, bool) or not isinstance(given.value, int) or given.value < 0:
        raise given.wrong("a whole number, 0 or more")
    return given.value


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
        if isinstance(stage, policies.LATER):
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
            hint(given.value, ("retry", "raise", "run"), _OUTAGE_SYNONYMS),
        )
    found = policy(given)
    return "raise" if isinstance(found, policies.Raise) else found


def _in_words(value: object) -> str:
    """A simple value as it is written, any other by its type: its text may be long, or secret."""
    if isinstance(value, bool | float | int | str | None):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _as_a_number(value: object) -> str:
    """The advice for a number written as something else."""
    if isinstance(value, timedelta):
        return f" Write {value.total_seconds():g}, its seconds."
    if isinstance(value, Decimal):
        return f" Write {float(value):g}."
    try:
        return f" Write {float(value):g}, without quotes." if isinstance(value, str) else ""
    except ValueError:
        return ""
