"""The records for SQLAlchemy: their table in your metadata, and the way for async sessions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from sqlalchemy import BigInteger, Column, MetaData, Table, Text
from sqlalchemy.dialects import mysql

from celery_fence.errors import AlreadyDone
from celery_fence.fencing.gate.mark import LONGEST
from celery_fence.fencing.idempotency import Claimed, claim, once
from celery_fence.fencing.idempotency.claiming import claim_work
from celery_fence.fencing.idempotency.record import TABLE
from celery_fence.fencing.idempotency.step import result_of, step_of_task
from celery_fence.fencing.sqlalchemy.asynchronous import AnyAsync, AsyncConnection, AsyncSession, in_scope
from celery_fence.fencing.sqlalchemy.gate import EXACT, exact_text
from celery_fence.fencing.writer import LONGEST_OWNER, Shown

__all__ = ["AsyncClaimed", "claim", "claim_async", "once", "once_async", "records_table"]

T = TypeVar("T")


def records_table(metadata: MetaData) -> Table:
    """
    The table of the records as a part of *metadata*: `create_all` makes it, Alembic's autogenerate sees it.

    Answers the same table when asked again.
    """
    known = metadata.tables.get(TABLE)
    if known is not None:
        return known
    return Table(
        TABLE,
        metadata,
        Column("record_key", exact_text(LONGEST), primary_key=True),
        Column("step", exact_text(LONGEST), primary_key=True),
        Column("lock_key", exact_text(LONGEST), nullable=False),
        Column("token", BigInteger, nullable=False),
        Column("owner", exact_text(LONGEST_OWNER), nullable=False),
        Column("claimed_at", BigInteger, nullable=False),
        Column("done_at", BigInteger),
        Column("result", Text().with_variant(mysql.MEDIUMTEXT(**EXACT), "mysql", "mariadb")),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


@dataclass(frozen=True, slots=True)
class AsyncClaimed:
    """As `Claimed`, in the transaction of an async session or connection."""

    claimed: Claimed
    _place: AsyncSession | AsyncConnection

    async def complete(self, result: T = None) -> T:  # type: ignore[assignment]
        """As `Claimed.complete`. Write ``await``: without it nothing is recorded."""
        return await self._place.run_sync(lambda _: self.claimed.complete(result))


async def claim_async(
    session: AnyAsync, *, key: str | None = None, lease: Shown | None = None
) -> AsyncClaimed:
    """
    Claim the work of the running task's idempotency key in the transaction of an async session; all else as in `claim`.

    Write ``await``: without it nothing is asked and nothing refused.
    """
    place = in_scope(session)
    return AsyncClaimed(await place.run_sync(claim, key=key, lease=lease), place)


@overload
async def once_async(
    session: AnyAsync,
    step: str,
    call: Callable[..., Awaitable[T]],
    *args: Any,
    key: str | None = ...,
    lease: Shown | None = ...,
) -> T: ...


@overload
async def once_async(
    session: AnyAsync,
    step: str,
    call: Callable[..., T],
    *args: Any,
    key: str | None = ...,
    lease: Shown | None = ...,
) -> T: ...


async def once_async(
    session: AnyAsync,
    step: str,
    call: Callable[..., Any],
    *args: Any,
    key: str | None = None,
    lease: Shown | None = None,
) -> Any:
    """What *call* returns, which may be a coroutine function, called unless this step was done before; see `once`."""
    place = in_scope(session)
    try:
        claimed = await place.run_sync(claim_work, step_of_task(step, key, lease))
    except AlreadyDone as done:
        return result_of(done)
    answer = call(*args)
    value = await answer if inspect.isawaitable(answer) else answer
    return await place.run_sync(lambda _: claimed.complete(value))
