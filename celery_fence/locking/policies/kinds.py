"""The policies as values: what they are called, what they take, and which values can't be."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from celery_fence.errors import ConfigError
from celery_fence.locking.policies.written import (
    Written,
    check_count,
    check_seconds,
    check_word,
    is_one_word,
    takes_one,
    wrong,
)
from celery_fence.locking.suggest import hint

if TYPE_CHECKING:
    from collections.abc import Callable


class NotGiven(enum.Enum):
    """The type of `NOT_GIVEN`: an enum, so that pickle gives the same object back."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "<the skip record>"


NOT_GIVEN = NotGiven.NOT_GIVEN
"""Says that `Skip` has no result of its own, which None would not: None may be the result."""


def _settle_then(policy: Chaining, *budgets: str) -> None:
    """
    Turn ``then="skip"`` into ``then=Skip()``, so that both compare equal.

    `ConfigError` for one that was given and could never follow, since none of the *budgets* is.
    """
    given: object = policy.then
    if not isinstance(given, Written):
        try:
            object.__setattr__(policy, "then", as_policy(given))
        except ConfigError as error:
            raise ConfigError(f"{type(policy).__name__}(then=...): {error}") from error
    if given is not _THEN and budgets and all(getattr(policy, name) is None for name in budgets):
        limits = " or ".join(f"{name}=..." for name in budgets)
        raise wrong(policy, "then", f"left out, or given with {limits}: without a limit it is never reached")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DeadLetter(Written):
    """Put the message, replayable, into the dead-letter *queue* (None: that of the settings), and fail."""

    queue: str | None = None

    def __post_init__(self) -> None:
        queue: object = self.queue
        if queue is not None and not (isinstance(queue, str) and is_one_word(queue)):
            raise wrong(
                self,
                "queue",
                "the name of a queue, without spaces, or None for the one of fence_dead_letter_queue",
            )


_THEN = DeadLetter()
"""What follows a spent budget where the user doesn't say: this very object."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Retry(Written):
    """
    Send the same message again after a delay that grows from *min_delay* to *max_delay*.

    Without *max_wait* (seconds since the first miss) and *max_attempts* (times
    sent again) it never gives up; when either is reached, *then* follows.
    """

    min_delay: float = 1
    max_delay: float = 60
    max_wait: float | None = None
    max_attempts: int | None = None
    then: Policy | str = _THEN

    def __post_init__(self) -> None:
        check_seconds(self, "min_delay")
        check_seconds(self, "max_delay")
        check_seconds(self, "max_wait", optional=True)
        check_count(self, "max_attempts")
        if self.max_delay < self.min_delay:
            raise wrong(self, "max_delay", f"at least min_delay, which is {self.min_delay!r}")
        _settle_then(self, "max_wait", "max_attempts")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Requeue(Written):
    """Put the message behind the work that waits in its queue; after *max_wait* seconds *then* follows."""

    max_wait: float | None = None
    then: Policy | str = _THEN

    def __post_init__(self) -> None:
        check_seconds(self, "max_wait", optional=True)
        _settle_then(self, "max_wait")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Skip(Written):
    """
    Don't run: the work is already being done. Stored as SUCCESS.

    *result* is the stored value, or a callable that makes it from the task's
    bound arguments; left out, a record says who held the key. *chain* ``"stop"``
    ends what follows in a chain with the same record, ``"continue"`` runs it.
    """

    result: Any = NOT_GIVEN
    chain: Literal["stop", "continue"] = "stop"

    def __post_init__(self) -> None:
        check_word(self, "chain", ("stop", "continue"))
        if callable(self.result) and not takes_one(self.result):
            raise wrong(
                self, "result", "a value, or a function of one argument, the dict of the task's arguments"
            )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Wait(Written):
    """Wait in place for at most *timeout* seconds, holding the pool slot; then *then* follows."""

    timeout: float = 5
    then: Policy | str = Retry()

    def __post_init__(self) -> None:
        check_seconds(self, "timeout")
        _settle_then(self)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Park(Written):
    """
    Wait in the key's own queue in the store, in order, with the worker free.

    With *max_parked* messages parked already, or after *max_wait* seconds, *then* follows.
    """

    max_parked: int | None = None
    max_wait: float | None = None
    then: Policy | str = _THEN

    def __post_init__(self) -> None:
        check_count(self, "max_parked")
        check_seconds(self, "max_wait", optional=True)
        _settle_then(self, "max_parked", "max_wait")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Coalesce(Written):
    """Park one message for each key and skip the rest: the parked one will see their change."""

    keep: Literal["first"] = "first"

    def __post_init__(self) -> None:
        check_word(self, "keep", ("first",))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Raise(Written):
    """Fail at once with `Contended`."""


Chaining = Retry | Requeue | Wait | Park
Policy = Retry | Requeue | DeadLetter | Skip | Wait | Park | Coalesce | Raise

LATER = (Wait, Park, Coalesce)
"""The policies that a later version brings: they can be written, and are refused where they are used."""

NAMES: dict[str, Callable[[], Policy]] = {
    "retry": Retry,
    "requeue": Requeue,
    "dead_letter": DeadLetter,
    "skip": Skip,
    "wait": Wait,
    "park": Park,
    "coalesce": Coalesce,
    "raise": Raise,
}
"""The policies that have a name, each with its defaults."""

OFFERED = tuple(name for name, policy in NAMES.items() if policy not in LATER)
"""The names that a message may advise."""

SYNONYMS = {
    "fail": "raise",
    "error": "raise",
    "ignore": "skip",
    "drop": "skip",
    "reject": "skip",
    "discard": "skip",
    "dlq": "dead_letter",
    "block": "wait",
    "queue": "park",
    "fifo": "park",
    "debounce": "coalesce",
    "reschedule": "retry",
}
"""What other libraries call them: for hints only."""


def policy_named(name: str) -> Policy:
    """The policy of that *name* with its defaults; `ConfigError` with the nearest name if there is none."""
    if name not in NAMES:
        known = ", ".join(repr(each) for each in OFFERED)
        raise ConfigError(
            f"There is no policy named {name!r}.{hint(name, OFFERED, SYNONYMS)} The names are {known}."
        )
    return NAMES[name]()


def as_policy(value: object) -> Policy:
    """A policy from its name or from itself; `ConfigError` says what else was given, and what to write."""
    if isinstance(value, Written):
        return cast("Policy", value)
    if isinstance(value, str):
        return policy_named(value)
    if isinstance(value, type) and issubclass(value, Written):
        raise ConfigError(
            f"{value.__name__} is a class: write {value.__name__}() for the policy with its defaults."
        )
    raise ConfigError(
        f"A policy is a name such as 'retry' or an object such as Retry(max_wait=30), not {value!r}."
    )


def stages(policy: Policy) -> tuple[Policy, ...]:
    """The chain that *policy* and its ``then=`` form, first to last; the last one ends every message."""
    chain = [policy]
    while isinstance(chain[-1], Chaining):
        chain.append(as_policy(chain[-1].then))
    return tuple(chain)
