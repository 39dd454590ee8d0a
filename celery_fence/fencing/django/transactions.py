"""The end of a Django connection's transaction; knows the connection by its methods and imports nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Self

from celery_fence.errors import ConfigError

KEPT: Final = "_celery_fence_until_commit"


@dataclass(frozen=True, slots=True)
class DjangoTransactions:
    """See `celery_fence.fencing.transactions.Transactions`."""

    connection: Any

    @classmethod
    def of(cls, given: Any) -> Self:
        """The transactions of ``django.db.connection`` or ``connections[...]``, `ConfigError` for anything else."""
        if not hasattr(given, "run_on_commit"):
            raise ConfigError(
                f"hold(until_commit=...) takes django.db.connection, not {type(given).__qualname__}."
            )
        return cls(given)

    def is_open(self) -> bool:
        """See `Transactions`; only ``atomic`` blocks count."""
        return bool(self.connection.in_atomic_block)

    def at_end(self, call: Callable[[], None]) -> None:
        """
        See `Transactions`; *call* is safe to be called again.

        Django tells of commits only; at a rollback or close it forgets what waits for the
        commit. So what waits here calls when it is called, and when it is forgotten. It
        is put there by hand: `on_commit` would tie it to the savepoint that is open.
        """
        self.connection.run_on_commit.append((set(), Waiting(call), False))

    @property
    def kept(self) -> dict[Hashable, Any]:
        """See `Transactions`."""
        found: dict[Hashable, Any] | None = getattr(self.connection, KEPT, None)
        if found is None:
            found = {}
            setattr(self.connection, KEPT, found)
        return found


class Waiting:
    """
    A hook on the commit; nobody else has it, so it is forgotten together with the list it is in.

    *call* is safe to be called again: where a soft time limit interrupts it, it is, when
    this is forgotten.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._forgotten = weakref.finalize(self, call)
        self._forgotten.atexit = False  # a process that ends leaves the lease to its TTL

    def __call__(self) -> None:
        """The transaction was committed."""
        self._call()
        self._forgotten.detach()
