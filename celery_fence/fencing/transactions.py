"""
When a transaction is over: what `hold(..., until_commit=...)` waits for.

A lease that is released inside a transaction lets the next holder in before it can see
what was written. So the release waits for the end of the outermost transaction: commit
or rollback, whichever way it comes. Savepoints don't count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, Protocol

from celery_fence.errors import ConfigError


class Transactions(Protocol):
    """The transactions of one session or connection, one after the other."""

    def is_open(self) -> bool:
        """Whether one has begun and isn't over."""

    def at_end(self, call: Callable[[], None]) -> None:
        """
        Call *call*, which is safe to be called again, when the open one has been committed or rolled back.

        Also where its session or connection is closed, or forgotten without being closed.
        """

    @property
    def kept(self) -> MutableMapping[Hashable, Any]:
        """What waits for the end of the open one."""


def transactions_of(given: Any) -> Transactions:
    """
    The transactions of an SQLAlchemy session (async and scoped ones, too) or of Django's connection.

    Raises:
        ConfigError: it is something else.

    """
    homes = {each.__module__.split(".")[0] for each in type(given).__mro__}
    if "sqlalchemy" in homes:
        from celery_fence.fencing.sqlalchemy.transactions import SessionTransactions

        return SessionTransactions.of(given)
    if "django" in homes:
        from celery_fence.fencing.django.transactions import DjangoTransactions

        return DjangoTransactions.of(given)
    raise ConfigError(
        "hold(until_commit=...) takes an SQLAlchemy session or Django's connection, whose transactions it can follow, "
        f"not {type(given).__module__}.{type(given).__qualname__}."
    )
