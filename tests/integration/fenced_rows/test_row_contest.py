"""
Twenty concurrent writers with random tokens against one row, on each database.

Tokens never go down, no accepted write is lost, and the newest writer gets through. A
plain UPDATE is caught by the same checker. ``FENCE_ROUNDS=1000`` for a thorough run.
"""

from __future__ import annotations

import pytest
from bench.contest import WRITERS, Bid, Entry, contest, violations
from bench.leases import lease, under
from bench.payouts import Payout, accounts, ledger, plain_accounts
from sqlalchemy import insert, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from celery_fence import StaleToken
from celery_fence.fencing.sqlalchemy import RowChanged, execute_fenced, fenced_insert, fenced_update


def by_object(engine, bid):
    with under(lease("payout:1", bid.token, bid.owner)), Session(engine) as session:
        payout = session.get_one(Payout, 1)
        payout.amount += 1
        session.flush()
        session.execute(_line(payout.amount, bid))
        session.commit()


def by_core(engine, bid):
    held = lease("account:1", bid.token, bid.owner)
    with engine.begin() as connection:
        statement = fenced_update(accounts, held).where(accounts.c.id == 1)
        execute_fenced(connection, statement.values(value=accounts.c.value + 1))
        connection.execute(_line(connection.scalar(select(accounts.c.value)), bid))


def by_upsert(engine, bid):
    """The read locks the row, so what was read is still there when it is written."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        value = connection.scalar(select(accounts.c.value).with_for_update()) + 1
        execute_fenced(
            connection,
            fenced_insert(accounts, lease("account:1", bid.token, bid.owner)).values(id=1, value=value),
        )
        connection.execute(_line(value, bid))


def unfenced(engine, bid):
    """The negative control: by id only, as everybody does it."""
    with engine.begin() as connection:
        value = connection.scalar(select(plain_accounts.c.value)) + 1
        stamp = {"last_fencing_token": bid.token, "last_fencing_owner": bid.owner}
        connection.execute(
            update(plain_accounts).where(plain_accounts.c.id == 1).values(value=value, **stamp)
        )
        connection.execute(_line(value, bid))


def _line(value, bid):
    return insert(ledger).values(value=value, token=bid.token, owner=bid.owner)


def persistent(write, engine):
    """Write until it is known whether it counts: a changed row, a deadlock or a busy database say nothing of that."""

    def attempt(bid: Bid) -> bool:
        while True:
            try:
                write(engine, bid)
            except StaleToken:
                return False
            except (RowChanged, OperationalError):
                continue
            return True

    return attempt


def row_now(engine, table, column):
    with engine.connect() as connection:
        row = connection.execute(
            select(table.c[column], table.c.last_fencing_token, table.c.last_fencing_owner)
        ).one()
    return Entry(*row)


def lines(engine):
    with engine.connect() as connection:
        rows = connection.execute(
            select(ledger.c.value, ledger.c.token, ledger.c.owner).order_by(ledger.c.value, ledger.c.id)
        )
        return [Entry(*row) for row in rows]


@pytest.fixture
def many(database, engine):
    """An engine with a connection for each writer."""
    engine = database.engine(pool_size=WRITERS)
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def rows(raw):
    raw("INSERT INTO payouts (id, state, amount) VALUES (1, 'new', 0)")
    raw("INSERT INTO accounts (id, value) VALUES (1, 0)")
    raw("INSERT INTO plain_accounts (id, value) VALUES (1, 0)")


@pytest.mark.parametrize(
    ("write", "table", "column"),
    [
        (by_object, Payout.__table__, "amount"),
        (by_core, accounts, "value"),
        (by_upsert, accounts, "value"),
    ],
    ids=["object", "core", "upsert"],
)
def test_tokens_never_go_down_and_no_accepted_write_is_lost(many, write, table, column):
    outcome = contest(persistent(write, many))

    assert violations(lines(many), outcome, row_now(many, table, column)) == []
    assert outcome.accepted
    assert outcome.refused


def test_a_plain_update_is_caught_by_the_same_checker(many):
    outcome = contest(persistent(unfenced, many), rounds=5)

    found = violations(lines(many), outcome, row_now(many, plain_accounts, "value"))

    assert any("went down" in each for each in found)
