"""What a session remembers of its guard: whose its transaction is, and on whose behalf each row is flushed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, Table
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

from celery_fence.errors import ConfigError, UnfencedWrite
from celery_fence.fencing.attempt import Attempt, check_lease
from celery_fence.fencing.sqlalchemy.asynchronous import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from celery_fence.fencing.sqlalchemy.condition import Mark
from celery_fence.fencing.sqlalchemy.rule import Rule
from celery_fence.fencing.writer import Mode, Shown, Writer, checked_mode, choose, let_pass, writers_here
from celery_fence.locking import current

GUARD: Final = "celery_fence.guard"
"""Under this name a session's `info` and a connection's execution options keep the guard."""

MODE: Final = "celery_fence.mode"
"""Under this name the `info` given to a sessionmaker has the mode of its sessions' guards."""

Identity: TypeAlias = tuple[Table, tuple[Any, ...]]
"""A row: its fenced table, and its primary key in the order of the table's."""


class Guard:
    """
    The guard of one session; `NOBODYS` is that of a connection without one.

    A transaction belongs to the leases that the code was under when it began, or to
    the one that was handed to `fence`. What another execution left in it is never
    written with the token of the next.
    """

    def __init__(self, *, mode: Mode | None = None) -> None:
        self.mode = mode
        self.lease: Shown | None = None
        self.began: tuple[Shown, ...] | None = None
        self.marks: dict[Identity, Mark] = {}
        self.flushed_by: dict[tuple[Table, str], Writer | None] = {}
        self.born: dict[Identity, SessionTransaction | None] = {}

    def begin(self) -> None:
        """The session's transaction begins."""
        self.began = leases_here() if self.lease is None else (self.lease,)
        self.forget()

    def end(self) -> None:
        """The session's transaction is over."""
        self.began = None
        self.forget()

    def begin_flush(self) -> None:
        """Who writes each row, and each key, is found out anew."""
        self.marks, self.flushed_by = {}, {}

    def end_flush(self) -> None:
        """Whoever writes a row again, in whatever way, is asked on whose behalf."""
        self.marks = {}

    def forget(self) -> None:
        """What was noted of rows isn't true any longer."""
        self.marks, self.born = {}, {}

    def undo(self, savepoint: SessionTransaction) -> None:
        """What was inserted since *savepoint* isn't there any more."""
        self.marks = {}
        self.born = {row: birth for row, birth in self.born.items() if not _within(birth, savepoint)}

    def mark_of(self, row: Identity) -> Mark | None:
        """On whose behalf *row* is being flushed, if it is."""
        if row in self.born:
            return Mark(None)
        return self.marks.get(row)

    def writers(self, rule: Rule) -> Sequence[Writer]:
        """Whom the session may write rows under *rule* as, the innermost lease first."""
        return writers_here(self.lease, mode=self.mode or rule.mode)

    def mode_of(self, rule: Rule) -> Mode:
        """In which mode rows under *rule* are guarded: the session's own, the rule's, or that of the task."""
        here = self.writers(rule)
        return self.mode or rule.mode or (here[0].mode if here else "enforce")

    def let_pass(self, rule: Rule, scope: str, what: str) -> None:
        """Tell of a write that nobody's token can be compared for, in mode ``shadow``."""
        here = self.writers(rule)
        nobody = replace(here[0], token=None) if here else Writer("", None, None, self.mode_of(rule))
        let_pass(nobody, scope=scope, what=what)

    def writer_for(self, rule: Rule, scope: str, what: str) -> Writer | None:
        """
        Who writes *scope*; None where the write isn't to be compared, which was told if it has no token.

        Raises:
            ScopeMismatch, UnfencedWrite: as `celery_fence.fencing.writer.writer_for`,
                and where the transaction isn't the writer's.

        """
        hand_over = "fenced_update(table, lease)" if self is NOBODYS else "fence(session, lease)"
        attempt = Attempt(what, hand_over)
        writer = choose(self.writers(rule), scope, mode=self.mode or rule.mode, attempt=attempt)
        return self.checked(writer, scope, what)

    def checked(self, writer: Writer, scope: str, what: str) -> Writer | None:
        """*writer* if its writes are to be compared; see `writer_for`."""
        if writer.token is None:
            let_pass(writer, scope=scope, what=what)
            return None
        if writer.mode == "off":
            return None
        if self.lease is None and self.began is not None and not _among(writer.lease, self.began):
            self._refuse_old(writer, scope, what)
        return writer

    def check_left_over(self) -> None:
        """
        Refuse to flush what an execution that has ended left behind into the transaction of the next.

        Raises:
            UnfencedWrite: the transaction began under a lease that isn't here any more,
                and another one is.

        """
        here = leases_here()
        if self.lease is None and self.began and here and not any(_among(each, here) for each in self.began):
            writer = writers_here(mode=self.mode)[0]
            if writer.mode != "off":
                self._refuse_old(writer, writer.key, "flush")

    def _refuse_old(self, writer: Writer, scope: str, what: str) -> None:
        if not writer.enforces:
            let_pass(writer, scope=scope, what=f"{what} in a transaction from before the lease")
            return
        raise UnfencedWrite(
            f"{what} of {scope!r}: this session's transaction began before the lease with token {writer.token} was "
            "taken, so what it holds was read or changed without it, maybe by another execution. Roll back (or "
            "commit, or remove() a scoped session) before the lease is taken, and read again under it."
        )


NOBODYS: Final = Guard()
"""The guard of connections that no session uses. Never changed."""


def guard_of(session: Session) -> Guard:
    """The guard of *session*."""
    found = session.info.get(GUARD)
    if not isinstance(found, Guard):
        found = session.info[GUARD] = Guard(mode=session.info.get(MODE))
    return found


def guard_on(connection: Connection) -> Guard:
    """The guard of the session whose transaction *connection* is in."""
    found = connection.get_execution_options().get(GUARD)
    return found if isinstance(found, Guard) and found.began is not None else NOBODYS


def fence(session: Any, lease: Shown | None = None, *, mode: Mode | None = None) -> None:
    """
    Write in *session* with *lease*, or in *mode*, instead of what the running code is under.

    For a `Session`, `AsyncSession` or scoped session: in a thread of your own, or with a
    stamp that came over a wire. It holds until it is called again; without a lease the
    session goes back to the lease it finds. A `sessionmaker` takes a mode for its sessions.

    Raises:
        UnfencedWrite: the session has changes that were made without the lease.
        ConfigError: there is no such mode, or *session* or *lease* isn't one.

    """
    known = checked_mode(mode)
    if lease is not None:
        check_lease(lease)
    if isinstance(session, sessionmaker | async_sessionmaker):
        if lease is not None:
            raise ConfigError(
                "A sessionmaker takes no lease, only a mode: fence each session with the lease."
            )
        session.configure(info={**(session.kw.get("info") or {}), MODE: known})
        return
    own = _session(session)
    if own.new or own.dirty or own.deleted:
        raise UnfencedWrite("The session has changes from before fence(...): flush or roll them back first.")
    guard = guard_of(own)
    guard.mode, guard.lease = known, lease
    if guard.began is not None:
        guard.began = leases_here() if lease is None else (lease,)


def leases_here() -> tuple[Shown, ...]:
    """The leases that the running code is under."""
    return tuple(frame.lease for frame in current.frames())


def _session(given: Any) -> Session:
    if isinstance(given, scoped_session | async_scoped_session):
        given = given()
    if isinstance(given, AsyncSession):
        return given.sync_session
    if isinstance(given, Session):
        return given
    raise ConfigError(f"fence() takes a session, a scoped session or a sessionmaker, not {given!r}.")


def _within(transaction: SessionTransaction | None, outer: SessionTransaction) -> bool:
    """Whether *transaction* is *outer* or was begun in it; None is the session's own, which is in no other."""
    while transaction is not None:
        if transaction is outer:
            return True
        transaction = transaction.parent
    return False


def _among(lease: Shown | None, leases: Sequence[Shown]) -> bool:
    return lease is None or any(each is lease for each in leases)
