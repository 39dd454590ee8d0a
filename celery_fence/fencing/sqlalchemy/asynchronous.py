"""
SQLAlchemy's async classes; without greenlet, classes that nothing is an instance of.

From SQLAlchemy 2.1 on greenlet is an extra of its own, and without it `sqlalchemy.ext.asyncio` can't be
imported. Then nobody has an async session either, and everything else goes on as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )
else:
    try:
        from sqlalchemy.ext.asyncio import (
            AsyncConnection,
            AsyncSession,
            async_scoped_session,
            async_sessionmaker,
        )
    except ImportError:
        T = TypeVar("T")

        class AsyncConnection:
            """Nobody's connection."""

        class AsyncSession:
            """Nobody's session."""

        class async_scoped_session(Generic[T]):  # noqa: N801 - SQLAlchemy's name
            """Nobody's scoped session."""

        class async_sessionmaker(Generic[T]):  # noqa: N801 - SQLAlchemy's name
            """Nobody's sessionmaker."""


__all__ = [
    "AnyAsync",
    "AsyncConnection",
    "AsyncSession",
    "async_scoped_session",
    "async_sessionmaker",
    "in_scope",
]

AnyAsync: TypeAlias = AsyncSession | AsyncConnection | async_scoped_session[Any]


def in_scope(session: AnyAsync) -> AsyncSession | AsyncConnection:
    """*session*, or the session that is in scope where it is a scoped one."""
    return session() if isinstance(session, async_scoped_session) else session
