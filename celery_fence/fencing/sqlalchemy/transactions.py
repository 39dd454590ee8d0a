"""The end of a session's transaction."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Self

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from celery_fence.errors import ConfigError
from celery_fence.fencing.sqlalchemy.asynchronous import AsyncSession, async_scoped_session

KEPT: Final = "celery_fence.until_commit"
WAITING: Final = "celery_fence.at_end"
"""Where a session's ``info`` keeps what waits for the end of its transaction."""


@dataclass(frozen=True, slots=True)
class SessionTransactions:
    """See `celery_fence.fencing.transactions.Transactions`."""

    session: Session

    @classmethod
    def of(cls, given: Any) -> Self:
        """The transactions of any kind of session; `ConfigError` for a connection, which tells before it commits."""
        if isinstance(given, scoped_session | async_scoped_session):
            given = given()
        if isinstance(given, AsyncSession):
            given = given.sync_session
        if not isinstance(given, Session):
            raise ConfigError(f"hold(until_commit=...) takes a Session, not {type(given).__qualname__}.")
        return cls(given)

    def is_open(self) -> bool:
        """See `Transactions`."""
        return self.session.in_transaction()

    def at_end(self, call: Callable[[], None]) -> None:
        """See `Transactions`."""
        waiting: list[Callable[[], None]] | None = self.session.info.get(WAITING)
        if waiting is None:
            waiting = []
            event.listen(self.session, "after_transaction_end", _ended)
            # A session that nobody closes goes, and its transaction with it; a process that ends
            # leaves its leases to their TTL.
            weakref.finalize(self.session, _forgotten, waiting).atexit = False
            # Last: interrupted before, all of this is done again, and that does no harm.
            self.session.info[WAITING] = waiting
        waiting.append(call)

    @property
    def kept(self) -> dict[Hashable, Any]:
        """See `Transactions`."""
        found: dict[Hashable, Any] = self.session.info.setdefault(KEPT, {})
        return found


def _ended(session: Session, transaction: SessionTransaction) -> None:
    """Savepoints, and what a flush begins inside a transaction, have a parent."""
    if transaction.parent is None:
        _call_all(session.info.get(WAITING, []))


def _forgotten(waiting: list[Callable[[], None]]) -> None:
    """In a thread: garbage is collected at any moment, perhaps inside a lock that the calls need."""
    if waiting:
        threading.Thread(target=_call_all, args=(waiting,), name="celery-fence-release", daemon=True).start()


def _call_all(waiting: list[Callable[[], None]]) -> None:
    """Each is safe to be called again: one that a soft time limit interrupts stays, for the next end."""
    while waiting:
        waiting[0]()
        del waiting[0]
