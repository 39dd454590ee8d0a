"""`pass_gate`: whether a writer may go on in this transaction."""

from __future__ import annotations

from typing import Any

from celery_fence.errors import AlreadyDone, ConfigError
from celery_fence.fencing.attempt import Attempt
from celery_fence.fencing.gate.mark import TABLE, Mark, Outcome, Wish, kept_scope
from celery_fence.fencing.gate.place import Place, place_of
from celery_fence.fencing.gate.table import naming_missing_table
from celery_fence.fencing.writer import Mode, Shown, Writer, let_pass, refuse, writer_for, writer_of

WHAT = "pass_gate"


def pass_gate(
    connection: Any,
    scope: str | None = None,
    lease: Shown | None = None,
    *,
    once: bool = False,
    mode: Mode | None = None,
) -> None:
    """
    Pass the gate of *scope* in the caller's transaction: one round trip, before the first write.

    It returns for a writer whose token is the highest that the scope has seen, and the
    scope's row stays locked until the transaction ends: another writer of the scope
    waits. A rollback leaves the mark as it was. *connection* is an SQLAlchemy Session or
    Connection, a DB-API connection (sqlite3, psycopg, pymysql) or Django's; for async
    ones there is `celery_fence.fencing.sqlalchemy.pass_gate_async`. *scope* is the key of *lease*:
    leave it out for that of the lease given, else of the innermost one here; name it, escaped as
    `lease.key` is, for the innermost lease on that very key.

    With *once*, one transaction for each token goes through: for what must not be
    done twice by one run, such as inserts that are tried again after a lost commit.

    Raises:
        StaleToken: the scope has seen a newer token, or this one from another owner.
            Roll back. In mode ``shadow`` it is only told of.
        AlreadyDone: with *once*, a transaction with this very token and owner has been
            committed; not in mode ``shadow``.
        ScopeMismatch: the lease is on another key.
        UnfencedWrite: there is no lease, or it has no token.
        ConfigError: no transaction that could keep the lock, nothing that is known, or no scope.

    """
    writer = _writer(scope, lease, mode)
    scope = scope or writer.key or TABLE
    if writer.token is None:
        let_pass(writer, scope=scope, what=WHAT)
    elif writer.compares:
        place = place_of(connection)
        place.check_transaction()
        wish = Wish(kept_scope(scope), Mark(writer.token, writer.owner))
        _pass(place, wish, writer, scope, once=once)


def _pass(place: Place, wish: Wish, writer: Writer, scope: str, *, once: bool) -> None:
    if place.has_passed(wish, once=once):
        return
    with naming_missing_table():
        outcome = place.dialect.move(place.ask, wish, once=once)
    _settle(writer, scope, wish, outcome, once=once)
    if outcome.seen == wish.mark:
        place.remember(wish, once=once)


def _writer(scope: str | None, lease: Shown | None, mode: Mode | None) -> Writer:
    """Who passes the gate of *scope*, or of its own key."""
    attempt = Attempt("pass_gate()", "pass_gate(session, lease=lease)")
    if scope is None:
        return writer_of(lease, mode=mode, attempt=attempt)
    if not isinstance(scope, str) or not scope:
        raise ConfigError(
            f"The scope of pass_gate() is a text, the key of a lease, not {scope!r}. Leave it out, and hand a lease "
            "over with lease=...."
        )
    return writer_for(scope, lease, mode=mode, attempt=attempt)


def _settle(writer: Writer, scope: str, wish: Wish, outcome: Outcome, *, once: bool) -> None:
    seen = outcome.seen
    if seen != wish.mark:
        refuse(writer, scope=scope, seen=seen.token, seen_owner=seen.owner, what=WHAT)
    elif once and not outcome.moved and writer.enforces:
        raise AlreadyDone(
            f"A transaction of this very run has passed the gate of {scope!r} with token {writer.token} and was "
            "committed, so once=True lets no other through: the work is done. Roll back and go on after it.",
            scope=scope,
            token=writer.token,
        )
