"""Never run, only type-checked: what users write with the guards of SQLAlchemy."""

from __future__ import annotations

from typing import assert_type

from sqlalchemy import Column, Connection, Delete, Insert, Integer, MetaData, Table, Update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from celery_fence import Lease, StaleToken
from celery_fence.fencing.sqlalchemy import (
    FencedMixin,
    RowChanged,
    execute_fenced,
    fence,
    fence_columns,
    fence_table,
    fenced_delete,
    fenced_insert,
    fenced_update,
)


class Base(DeclarativeBase):
    """A user's base class."""


class Payout(FencedMixin, Base):
    """A fenced class."""

    __tablename__ = "payouts"
    __fence_key__ = "payout:<id>"
    __fence_mode__ = "shadow"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str]


accounts = fence_table(Table("accounts", MetaData(), Column("id", Integer), *fence_columns()), "account:<id>")


def by_object(session: Session, lease: Lease) -> str | None:
    """What a row shows has a type."""
    fence(session, lease)
    payout = session.get_one(Payout, 7)
    assert_type(payout.last_fencing_token, int)
    try:
        session.commit()
    except (StaleToken, RowChanged):
        session.rollback()
    return payout.last_fencing_owner


def by_statement(connection: Connection, lease: Lease) -> None:
    """They are ordinary statements."""
    assert_type(fenced_update(Payout, lease).where(Payout.id == 7).values(state="paid"), Update)
    assert_type(fenced_delete(accounts, scope="account:7"), Delete)
    assert_type(fenced_insert(accounts, lease, on=["id"], mode="shadow"), Insert)
    execute_fenced(connection, fenced_insert(accounts).values(id=1), [{"id": 2}])


async def by_async_session(session: AsyncSession) -> None:
    """What is asked of an async session is awaited."""
    fence(session, mode="off")
    await execute_fenced(session, fenced_update(accounts))


fence(sessionmaker(), mode="shadow")
fence(async_sessionmaker(), mode="enforce")
