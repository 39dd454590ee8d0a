"""
Who writes: the token that a guarded write shows, and what happens when it is refused.

Every guard (a mixin, a gate, a stream) asks `writer_of` or `writer_for` who writes,
compares the writer's token with the one it has seen, and calls `refuse` where the
writer is stale. What "stale" means is said once, in `is_stale`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, TypeAlias

from celery_fence.errors import ConfigError, StaleToken
from celery_fence.fencing.attempt import GUARDED, Attempt, check_lease
from celery_fence.fencing.mismatch import is_unescaped, mismatch
from celery_fence.locking import current, events
from celery_fence.locking.lease import Lease
from celery_fence.locking.null_lease import NullLease

Mode: TypeAlias = Literal["enforce", "shadow", "off"]
"""``enforce`` refuses, ``shadow`` lets pass and tells, ``off`` doesn't even compare."""

MODES: Final[tuple[Mode, ...]] = ("enforce", "shadow", "off")

LONGEST_OWNER: Final = 64
"""Characters of the column that keeps an owner."""

logger = logging.getLogger("celery_fence")


class Shown(Protocol):
    """What a caller may hand to a guard as ``lease=``: a lease, a `Writer`, a stamp that came over a wire."""

    @property
    def key(self) -> str | None: ...  # noqa: D102
    @property
    def token(self) -> int | None: ...  # noqa: D102
    @property
    def owner(self) -> str | None: ...  # noqa: D102


def log_only(event: events.Event) -> None:
    """Tell the log of a refusal, in the words of the log's own observer, where no app is known that has observers."""
    said = event.line if isinstance(event, events.StaleWriteRefused) else repr(event)
    facts = {name: getattr(event, name, None) for name in ("key", "token", "owner")}
    logger.warning("%s", said, extra=facts)


@dataclass(frozen=True, slots=True)
class Writer:
    """
    Who writes: *owner*, with the *token* of a lease on *key*.

    The token is None, and the key empty, for a run without a lease. The owner fits
    into 64 characters. *source* and *emit* are who is told of refusals: the task, or
    the app, and what reaches its observers.
    """

    key: str
    token: int | None
    owner: str | None
    mode: Mode = "enforce"
    source: Any = None
    lease: Lease | NullLease | None = None
    emit: Callable[[events.Event], None] = field(default=log_only, repr=False)

    @property
    def compares(self) -> bool:
        """Whether this writer's writes are to be compared at all: it has a token and isn't ``off``."""
        return self.token is not None and self.mode != "off"

    @property
    def enforces(self) -> bool:
        """Whether a stale write of this writer is refused, not only told of."""
        return self.mode == "enforce"


def writer_of(lease: Shown | None = None, *, mode: Mode | None = None, attempt: Attempt = GUARDED) -> Writer:
    """
    The writer of *lease*, or of the innermost lease that the running code is under.

    *mode* is the guard's own; without it that of the task counts. A writer without a
    token is told of with `let_pass` by the guard, and writes as if there were none.
    An error names the *attempt*.

    Raises:
        UnfencedWrite: in mode ``enforce``, there is no lease, or it has no token.
        ConfigError: *lease* is something else, such as a token.

    """
    writers = writers_here(lease, mode=mode)
    return _checked(writers[0] if writers else _nobody(mode), attempt)


def writer_for(
    scope: str, lease: Shown | None = None, *, mode: Mode | None = None, attempt: Attempt = GUARDED
) -> Writer:
    """
    The writer with a lease on the very key *scope*: *lease*, or the innermost such lease here.

    A run without a lease (its token is None) passes as in `writer_of`, for any scope;
    so does, in the modes ``shadow`` and ``off``, one with a lease on another key.

    Raises:
        ScopeMismatch: the lease given, or each lease here, is on another key: tokens
            of two keys can't be compared.
        UnfencedWrite, ConfigError: as in `writer_of`.

    """
    return choose(writers_here(lease, mode=mode), scope, mode=mode, attempt=attempt)


def writers_here(lease: Shown | None = None, *, mode: Mode | None = None) -> tuple[Writer, ...]:
    """Whom the running code may write as: for *lease*, or for each lease it is under, the innermost first."""
    known = checked_mode(mode)
    if isinstance(lease, Writer):
        return (replace(lease, mode=known or lease.mode),)
    if lease is not None:
        check_lease(lease)
        return (_written_by(lease, known or _mode_of(lease)),)
    return tuple(_written_by(frame.lease, known or frame.mode) for frame in reversed(current.frames()))


def choose(
    writers: Sequence[Writer], scope: str, *, mode: Mode | None = None, attempt: Attempt = GUARDED
) -> Writer:
    """The one of *writers* whose key is *scope*; see `writer_for`, whose errors it raises."""
    for writer in writers:
        if writer.token is not None and writer.key == scope:
            return writer
    innermost = writers[0] if writers else _nobody(mode)
    if innermost.token is None:
        return _checked(innermost, attempt, scope)
    if innermost.enforces:
        meant = next((each for each in writers if is_unescaped(scope, each.key)), innermost)
        raise mismatch(meant.key, scope=scope, key=scope)
    return replace(innermost, token=None)


def is_stale(writer: Writer, seen: int | None, seen_owner: str | None) -> bool:
    """
    Whether a state that was last written with *seen* by *seen_owner* is newer than *writer*.

    An older token is stale, and so is an equal one of another owner; the same token
    of the same owner is another write of the same run. Only for a writer with a token.
    """
    if seen is None or writer.token is None or seen < writer.token:
        return False
    return seen > writer.token or seen_owner != writer.owner


def refuse(
    writer: Writer,
    *,
    scope: str,
    seen: int | None,
    seen_owner: str | None = None,
    what: str = "write",
) -> None:
    """
    Refuse a stale write, or only tell of it where the writer's mode isn't ``enforce``.

    Emits `StaleWriteRefused` in any case. *what* is what was attempted, such as
    ``"UPDATE payouts"``; *seen* is the newer token, if it is known.

    Raises:
        StaleToken: in mode ``enforce``.

    """
    writer.emit(
        events.StaleWriteRefused(
            source=writer.source,
            key=writer.key or scope,
            lease=writer.lease,
            scope=scope,
            token=writer.token,
            owner=writer.owner,
            seen=seen,
            seen_owner=seen_owner,
            what=what,
            refused=writer.enforces,
        )
    )
    if writer.enforces:
        raise StaleToken(_stale(writer, scope, seen, what), scope=scope, token=writer.token, seen=seen)


def let_pass(writer: Writer, *, scope: str, what: str = "write") -> None:
    """Tell of a write without a token, which the mode ``shadow`` or ``off`` lets pass."""
    refuse(writer, scope=scope, seen=None, what=what)


def checked_mode(mode: str | None) -> Mode | None:
    """*mode* if there is such a mode; `ConfigError` otherwise."""
    for known in MODES:
        if mode == known:
            return known
    if mode is None:
        return None
    raise ConfigError(f"mode={mode!r} is no mode of a guard; choose one of {', '.join(map(repr, MODES))}.")


def short_owner(owner: str) -> str:
    """*owner* as it is kept beside a token: itself, or its digest when it is longer than 64 characters."""
    return owner if len(owner) <= LONGEST_OWNER else hashlib.sha256(owner.encode()).hexdigest()


def _written_by(lease: Shown, mode: Mode) -> Writer:
    here = _lease_here()
    return Writer(
        key=lease.key or "",
        token=lease.token,
        owner=None if lease.owner is None else short_owner(lease.owner),
        mode=checked_mode(mode) or "enforce",
        source=getattr(lease, "source", here and here.source),
        lease=lease if isinstance(lease, Lease | NullLease) else None,
        emit=getattr(lease, "emit", here.emit if here else log_only),
    )


def _lease_here() -> Lease | NullLease | None:
    """Whose observers are told of a refusal where the lease came over a wire: those of the task that runs here."""
    entered = current.frames()
    return entered[-1].lease if entered else None


def _mode_of(lease: Shown) -> Mode:
    """The mode of the task that *lease* was entered for, where that is here."""
    for frame in reversed(current.frames()):
        if frame.lease is lease:
            return frame.mode
    return "enforce"


def _nobody(mode: Mode | None) -> Writer:
    """Who writes where there is no lease at all."""
    return Writer("", None, None, checked_mode(mode) or "enforce")


def _checked(writer: Writer, attempt: Attempt, scope: str = "") -> Writer:
    if writer.token is None and writer.enforces:
        raise attempt.tokenless(scope) if writer.lease is not None else attempt.leaseless(scope)
    return writer


def _stale(writer: Writer, scope: str, seen: int | None, what: str) -> str:
    newer = "a newer token" if seen is None else f"token {seen}"
    if seen is not None and seen == writer.token:
        newer = f"token {seen} of another owner"
    return (
        f"{what} refused for {scope!r}: it showed token {writer.token}, and {newer} has been seen. Another run has "
        "taken over; roll back, stop, and write nothing more for this key. Don't retry with this token."
    )
