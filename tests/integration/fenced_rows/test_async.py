"""Async sessions and connections are fenced as sync ones are."""

from __future__ import annotations

import asyncio

import pytest
from bench.leases import lease, under
from bench.payouts import Invoice, Payout, accounts
from sqlalchemy import make_url, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

from celery_fence import StaleToken
from celery_fence.errors import ScopeMismatch, UnfencedWrite
from celery_fence.fencing.sqlalchemy import execute_fenced, fence, fenced_update

TOLD_TO_COMMIT = {"postgres": "postgresql+psycopg", "mariadb": "mysql+aiomysql"}
"""Async drivers that can be told to commit each statement by themselves."""

SEVEN = "SELECT state, last_fencing_token, last_fencing_owner FROM payouts WHERE id = 7"


@pytest.fixture(autouse=True)
def written(raw):
    """Rows as runs with token 5 have left them."""
    raw(
        "INSERT INTO payouts (id, state, amount, last_fencing_token, last_fencing_owner) "
        "VALUES (7, 'new', 0, 5, 'owner-5')"
    )
    raw(
        "INSERT INTO accounts (id, value, last_fencing_token, last_fencing_owner) VALUES (1, 0, 5, 'owner-5')"
    )


@pytest.fixture
def run(database):
    """Run an async function of an engine."""

    def run(work):
        async def main():
            engine = database.async_engine()
            try:
                return await work(engine)
            finally:
                await engine.dispose()

        return asyncio.run(main())

    return run


async def write(engine):
    async with AsyncSession(engine) as session:
        payout = await session.get_one(Payout, 7)
        payout.state = "late"
        await session.commit()


async def delete(engine):
    async with AsyncSession(engine) as session:
        await session.delete(await session.get_one(Payout, 7))
        await session.commit()


async def by_statement(engine):
    async with AsyncSession(engine) as session:
        await session.execute(update(Payout).where(Payout.id == 7).values(state="late"))
        await session.commit()


async def on_a_connection(engine):
    async with engine.begin() as connection:
        await connection.execute(update(Payout.__table__).where(Payout.id == 7).values(state="late"))


each_write = pytest.mark.parametrize("work", [write, delete, by_statement, on_a_connection])


@each_write
def test_a_stale_write_is_refused(raw, run, work):
    for held, error in (
        (lease("payout:7", 4), StaleToken),
        (lease("payout:7", 5, "somebody else"), StaleToken),
        (lease("payout:8", 9), ScopeMismatch),
    ):
        with under(held), pytest.raises(error):
            run(work)
    with pytest.raises(UnfencedWrite):
        run(work)

    assert raw(SEVEN) == [("new", 5, "owner-5")]


@each_write
def test_a_newer_token_writes(raw, run, work):
    with under(lease("payout:7", 6)):
        run(work)

    assert raw(SEVEN) in ([("late", 6, "owner-6")], [])


@pytest.mark.parametrize("verb", ["update", "delete"])
def test_one_stale_row_of_a_batch_takes_back_all_of_it(raw, run, verb):
    """Also where the driver doesn't count the rows of a batch, as asyncpg doesn't."""
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one')")
    for number in range(1, 6):
        token = 9 if number == 4 else 0
        raw(
            f"INSERT INTO invoices (id, tenant_id, total, last_fencing_token) VALUES ({number}, 1, 0, {token})"
        )

    async def work(engine):
        async with AsyncSession(engine) as session:
            for invoice in await session.scalars(select(Invoice)):
                if verb == "update":
                    invoice.total = 10
                else:
                    await session.delete(invoice)
            await session.commit()

    with under(lease("tenant:1", 6)), pytest.raises(StaleToken):
        run(work)
    assert raw("SELECT count(*), sum(total) FROM invoices") == [(5, 0)]

    with under(lease("tenant:1", 10)):
        run(work)
    assert raw("SELECT count(*), max(last_fencing_token) FROM invoices") in ([(5, 10)], [(0, None)])


def test_a_fenced_statement_is_awaited(raw, run):
    async def work(engine):
        async with engine.begin() as connection:
            await execute_fenced(
                connection, fenced_update(accounts).where(accounts.c.id == 1).values(value=9)
            )

    with under(lease("account:1", 4)), pytest.raises(StaleToken):
        run(work)
    with under(lease("account:1", 6)):
        run(work)

    assert raw("SELECT value, last_fencing_token FROM accounts") == [(9, 6)]


def test_sessions_are_fenced_by_hand(raw, run):
    async def work(engine):
        maker = async_sessionmaker(engine)
        scoped = async_scoped_session(maker, scopefunc=asyncio.current_task)
        fence(scoped, lease("payout:7", 6))
        (await scoped.get_one(Payout, 7)).state = "scoped"
        await scoped.commit()
        await scoped.remove()
        fence(maker, mode="shadow")
        async with maker() as session:
            (await session.get_one(Payout, 7)).amount = 1
            await session.commit()

    run(work)

    assert raw("SELECT state, amount, last_fencing_token FROM payouts") == [("scoped", 1, 6)]


def test_a_driver_that_commits_by_itself_is_refused(database, raw):
    if database.kind == "sqlite":
        pytest.skip("also on CI: its driver has another word for it")

    async def work():
        url = make_url(database.url).set(drivername=TOLD_TO_COMMIT[database.kind])
        careless = create_async_engine(url, connect_args={"autocommit": True})
        try:
            await write(careless)
        finally:
            await careless.dispose()

    with under(lease("payout:7", 6)), pytest.raises(UnfencedWrite, match="autocommit"):
        asyncio.run(work())

    assert raw(SEVEN) == [("new", 5, "owner-5")]
