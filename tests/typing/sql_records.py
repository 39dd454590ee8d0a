"""What a type checker says of records in a database; never run, only checked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import assert_type

from sqlalchemy import MetaData, Table
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from celery_fence import Lease
from celery_fence.fencing.idempotency import (
    Claimed,
    Record,
    claim,
    create_records,
    delete_record,
    delete_records,
    find_record,
    list_records,
    once,
    record_ddl,
)
from celery_fence.fencing.sqlalchemy import claim_async, once_async, records_table


def charge(cents: int) -> dict[str, int]:
    return {"charged": cents}


async def charge_later(cents: int) -> dict[str, int]:
    return {"charged": cents}


def in_a_transaction(session: Session, connection: sqlite3.Connection, lease: Lease) -> None:
    record = claim(session)
    assert_type(record, Claimed)
    assert_type(record.complete({"charged": 5}), dict[str, int])
    record.complete()
    assert_type(claim(connection, key="payment:7", lease=lease).kept, bool)
    assert_type(once(session, "charge", charge, 5), dict[str, int])
    once(session, "charge", charge, 5, key="payment:7", lease=lease)
    once(session, 7, charge)  # type: ignore[arg-type]


async def in_an_async_one(session: AsyncSession, lease: Lease) -> None:
    record = await claim_async(session, key="payment:7", lease=lease)
    assert_type(await record.complete(5), int)
    assert_type(await once_async(session, "charge", charge_later, 5), dict[str, int])


def all_of_them(session: Session) -> None:
    assert_type(records_table(MetaData()), Table)
    create_records(session)
    assert_type(record_ddl("postgresql"), str)
    assert_type(find_record(session, "payment:7"), Record | None)
    assert_type(list_records(session), Iterator[Record])
    assert_type(delete_record(session, "payment:7") + delete_records(session, older_than=86400.0), int)
