"""Records in the transactions of SQLAlchemy and of async sessions, and what they cost."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager

import pytest
from bench.drivers import parameters
from sqlalchemy import MetaData, create_engine, event, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_fence import ConfigError
from celery_fence.errors import AlreadyDone
from celery_fence.fencing.idempotency import claim, find_record, once
from celery_fence.fencing.sqlalchemy import claim_async, once_async, records_table
from celery_fence.fencing.writer import Writer

each_database = pytest.mark.parametrize("name", parameters())


@pytest.fixture
def key():
    return f"payment:{uuid.uuid4().hex}"


@pytest.fixture
def engine(databases, name):
    engine = create_engine(databases(name).url())
    yield engine
    engine.dispose()


@pytest.fixture
def statements(engine):
    """What was sent to the database: each statement a round trip."""
    sent = []
    event.listen(engine, "before_cursor_execute", lambda _c, _u, statement, *_: sent.append(statement))
    return sent


def writer(token, owner="somebody"):
    return Writer("tenant:7", token, owner)


def effect(session, work):
    session.execute(text("INSERT INTO effects (work) VALUES (:work)"), {"work": work})
    return {"charged": work}


def effects(database, work):
    return database.run(f"SELECT count(*) FROM effects WHERE work = '{work}'")[0][0]


@each_database
@pytest.mark.parametrize("kind", ["session", "scoped session", "connection"])
def test_the_second_run_gets_the_result_of_the_first(kind, databases, engine, name, key):
    def place():
        return {
            "session": lambda: Session(engine),
            "scoped session": lambda: scoped_session(sessionmaker(engine)),
            "connection": engine.connect,
        }[kind]()

    first = place()
    record = claim(first, key=key, lease=writer(5))
    record.complete(effect(first, key))
    first.commit()
    first.close()
    second = place()
    with pytest.raises(AlreadyDone) as done:
        claim(second, key=key, lease=writer(6))
    second.close()

    assert done.value.result == {"charged": key}
    assert effects(databases(name), key) == 1


@each_database
def test_an_error_in_the_block_undoes_effect_and_record(databases, engine, name, key):
    def failing():
        with Session(engine) as session, session.begin():
            claim(session, key=key, lease=writer(5)).complete(effect(session, key))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()

    with Session(engine) as session:
        assert find_record(session, key) is None
    assert effects(databases(name), key) == 0


@each_database
def test_a_session_completes_what_it_claimed_in_an_earlier_transaction(engine, name, key):
    with Session(engine) as session:
        record = claim(session, key=key, lease=writer(5))
        session.commit()
        record.complete("done")
        session.commit()
        assert find_record(session, key).done


@each_database
def test_claim_and_record_cost_one_round_trip_each(engine, statements, name, key):
    with Session(engine) as session, session.begin():
        claim(session, key=key, lease=writer(5)).complete("done")

    assert len(statements) == 2


@each_database
def test_a_step_costs_two_round_trips_done_or_not(engine, statements, name, key):
    for token, called in ((5, 2), (6, 2)):
        statements.clear()
        with Session(engine) as session, session.begin():
            assert once(session, "mail:1", lambda: "sent", key=key, lease=writer(token)) == "sent"
        assert len(statements) == called


@each_database
def test_a_rolled_back_savepoint_undoes_the_step_in_it(databases, engine, name, key):
    with Session(engine) as session, session.begin():
        savepoint = session.begin_nested()
        once(session, "mail:1", effect, session, key, key=key, lease=writer(5))
        savepoint.rollback()
        once(session, "mail:1", effect, session, key, key=key, lease=writer(5))

    assert effects(databases(name), key) == 1


@each_database
def test_a_table_made_by_create_all_serves_as_well(engine, name, key):
    metadata = MetaData()
    table = records_table(metadata)
    with engine.begin() as connection:
        made = {each["name"]: each["nullable"] for each in inspect(connection).get_columns("fence_records")}
        metadata.drop_all(connection)
        metadata.create_all(connection)
        again = {each["name"]: each["nullable"] for each in inspect(connection).get_columns("fence_records")}
        assert inspect(connection).get_pk_constraint("fence_records")["constrained_columns"] == [
            "record_key",
            "step",
        ]
    with Session(engine) as session, session.begin():
        claim(session, key=key, lease=writer(5)).complete(b"".hex())
        assert claim_is_case_sensitive(session, key)

    assert made == again
    assert records_table(metadata) is table


def claim_is_case_sensitive(session, key):
    return claim(session, key=key.upper(), lease=writer(5)).kept


@asynccontextmanager
async def async_transaction(kind, url):
    """A transaction of an async session or connection, which is committed at the end."""
    engine = create_async_engine(url)
    made = {
        "session": lambda: AsyncSession(engine),
        "scoped session": lambda: async_scoped_session(async_sessionmaker(engine), asyncio.current_task),
        "connection": engine.connect,
    }[kind]()
    if kind == "connection":
        await made.start()
    try:
        yield made
        await made.commit()
    finally:
        await made.close()
        await engine.dispose()


each_async_kind = pytest.mark.parametrize("kind", ["session", "scoped session", "connection"])


@each_database
@each_async_kind
def test_async_sessions_and_connections_record_effects(kind, databases, name, key):
    url = databases(name).url(asynchronous=True)

    async def pay(token):
        async with async_transaction(kind, url) as session:
            record = await claim_async(session, key=key, lease=writer(token))
            await session.execute(text("INSERT INTO effects (work) VALUES (:work)"), {"work": key})
            return await record.complete({"charged": key})

    assert asyncio.run(pay(5)) == {"charged": key}
    with pytest.raises(AlreadyDone) as done:
        asyncio.run(pay(6))

    assert done.value.result == {"charged": key}
    assert effects(databases(name), key) == 1


@each_database
@each_async_kind
def test_async_steps_are_done_once_whether_or_not_they_are_coroutines(kind, databases, name, key):
    url = databases(name).url(asynchronous=True)
    calls = []

    async def send(address):
        calls.append(address)
        return address

    async def run(token):
        async with async_transaction(kind, url) as session:
            lease = writer(token)
            first = await once_async(session, "mail:1", send, "a@b.c", key=key, lease=lease)
            second = await once_async(session, "mail:2", calls.append, "plain", key=key, lease=lease)
            return first, second

    assert [asyncio.run(run(5)), asyncio.run(run(6))] == [("a@b.c", None)] * 2
    assert calls == ["a@b.c", "plain"]


@each_database
def test_an_async_session_in_the_place_of_a_sync_one_is_told_the_way(databases, name, key):
    session = AsyncSession(create_async_engine(databases(name).url(asynchronous=True)))

    with pytest.raises(ConfigError, match="claim_async"):
        claim(session, key=key, lease=writer(5))
