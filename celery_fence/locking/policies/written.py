"""How a policy is written down, and how its fields are checked."""

from __future__ import annotations

import enum
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self, cast

from celery_fence.errors import ConfigError
from celery_fence.locking.keys import signature_of
from celery_fence.locking.suggest import hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


SYNONYMS = {
    "attempts": "max_attempts",
    "retries": "max_attempts",
    "max_retries": "max_attempts",
    "max_tries": "max_attempts",
    "times": "max_attempts",
    "timeout": "max_wait",
    "max_time": "max_wait",
    "wait": "max_wait",
    "countdown": "min_delay",
    "delay": "min_delay",
    "default_retry_delay": "min_delay",
    "backoff_max": "max_delay",
    "retry_backoff_max": "max_delay",
    "fallback": "then",
    "otherwise": "then",
    "value": "result",
    "queue_name": "queue",
    "name": "queue",
}
"""What Celery and other libraries call the fields: for hints only."""


class Written:
    """Base of the policies: each prints as it is written, its name and what differs from the defaults."""

    __slots__ = ()

    def __new__(cls, *unnamed: object, **named: object) -> Self:
        """`TypeError` with advice for a value without its name and for a field that there isn't."""
        known = [each.name for each in fields(cast("Any", cls))]
        if unnamed:
            raise TypeError(
                f"{cls.__name__}({unnamed[0]!r}) doesn't say which field it gives. {_fields(cls)}"
            )
        for name in named:
            if name not in known:
                raise TypeError(
                    f"{cls.__name__} has no field {name!r}.{hint(name, known, SYNONYMS)} {_fields(cls)}"
                )
        return super().__new__(cls)

    def __repr__(self) -> str:
        shown = (f"{name}={_text(value)}" for name, value in _given(self))
        return f"{type(self).__name__}({', '.join(shown)})"


def check_seconds(policy: Written, field: str, *, optional: bool = False) -> None:
    """`ConfigError` unless *field* is a finite number above 0 (or None, where *optional*)."""
    value = getattr(policy, field)
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise wrong(
            policy, field, "a number of seconds above 0" + (", or None for no limit" if optional else "")
        )


def check_count(policy: Written, field: str) -> None:
    """`ConfigError` unless *field* is a whole number above 0, or None."""
    value = getattr(policy, field)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise wrong(policy, field, "a whole number of at least 1, or None for no limit")


def check_word(policy: Written, field: str, words: tuple[str, ...]) -> None:
    """`ConfigError` unless *field* is one of *words*."""
    value = getattr(policy, field)
    if value not in words:
        known = " or ".join(repr(word) for word in words)
        raise wrong(policy, field, known + ("." + hint(value, words) if isinstance(value, str) else ""))


def is_one_word(text: str) -> bool:
    """Whether *text* is the name of something: printable, not empty and without spaces."""
    return bool(text) and text.isprintable() and not any(char.isspace() for char in text)


def takes_one(function: Callable[..., Any]) -> bool:
    """Whether *function* can be called with one argument; yes where it has no signature to ask."""
    try:
        signature = signature_of(function)
    except ConfigError:
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def wrong(policy: Written, field: str, right: str) -> ConfigError:
    """The error that names policy, field and value, and says what would be *right*."""
    return ConfigError(
        f"{type(policy).__name__}({field}={_text(getattr(policy, field))}): {field} must be {right}"
    )


def _fields(policy: type[Written]) -> str:
    """What can be written, as the end of a message."""
    known = [each.name for each in fields(cast("Any", policy))]
    called = policy.__name__
    if not known:
        return f"It takes nothing: write {called}()."
    return f"Give each by its name, as in {called}({known[0]}=...). Its fields: {', '.join(known)}."


def _given(policy: Written) -> Iterator[tuple[str, Any]]:
    """Name and value of the fields that differ from their defaults."""
    for field in fields(cast("Any", policy)):
        value = getattr(policy, field.name)
        by_identity = isinstance(field.default, enum.Enum)  # a user's value may have an `==` of its own
        if value is not field.default if by_identity else value != field.default:
            yield field.name, value


def _text(value: object) -> str:
    """A function by its name, anything else by its repr: as it stands in the source."""
    return str(getattr(value, "__qualname__", None) or repr(value))
