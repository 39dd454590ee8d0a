"""The gate for SQLAlchemy: its table in your metadata, and the way for async sessions."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, MetaData, String, Table
from sqlalchemy.dialects import mysql

from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.gate.mark import LONGEST, TABLE
from celery_fence.fencing.sqlalchemy.asynchronous import AnyAsync, in_scope
from celery_fence.fencing.writer import LONGEST_OWNER, Mode, Shown

__all__ = ["gates_table", "pass_gate", "pass_gate_async"]

EXACT: Final = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
"""In MySQL, texts that differ in case or accents are different scopes, as they are everywhere else."""


def gates_table(metadata: MetaData) -> Table:
    """
    The table of the gates as a part of *metadata*: `create_all` makes it, Alembic's autogenerate sees it.

    Answers the same table when asked again.
    """
    known = metadata.tables.get(TABLE)
    if known is not None:
        return known
    return Table(
        TABLE,
        metadata,
        Column("scope", exact_text(LONGEST), primary_key=True),
        Column("last_fencing_token", BigInteger, nullable=False),
        Column("last_fencing_owner", exact_text(LONGEST_OWNER)),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


async def pass_gate_async(
    session: AnyAsync,
    scope: str | None = None,
    lease: Shown | None = None,
    *,
    once: bool = False,
    mode: Mode | None = None,
) -> None:
    """
    Pass the gate in the transaction of an async session or connection; all else as in `pass_gate`.

    Write ``await``: without it nothing is asked and nothing refused.
    """
    await in_scope(session).run_sync(pass_gate, scope, lease, once=once, mode=mode)


def exact_text(length: int) -> String:
    """The type of a column whose texts differ where the texts differ."""
    exact = mysql.VARCHAR(length, **EXACT)
    return String(length).with_variant(exact, "mysql", "mariadb")
