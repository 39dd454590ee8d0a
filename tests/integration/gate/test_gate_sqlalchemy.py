"""The gate in the transactions of SQLAlchemy, and what it costs."""

from __future__ import annotations

import asyncio
import uuid

import psycopg
import pytest
from bench.databases import told_to_commit
from bench.drivers import parameters
from sqlalchemy import MetaData, create_engine, event, inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.schema import CreateTable

from celery_fence import ConfigError, StaleToken
from celery_fence.errors import AlreadyDone
from celery_fence.fencing.gate import create_gates, gate_ddl
from celery_fence.fencing.sqlalchemy.gate import gates_table, pass_gate, pass_gate_async
from celery_fence.fencing.writer import Writer

each_database = pytest.mark.parametrize("name", parameters())


@pytest.fixture
def scope():
    return f"tenant:{uuid.uuid4().hex}:sync"


@pytest.fixture
def engine(databases, name):
    engine = create_engine(databases(name).url())
    yield engine
    engine.dispose()


@pytest.fixture
def statements(engine):
    """What was sent to the database: each statement a round trip."""
    sent = []
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    return sent


def writer(scope, token, owner="somebody"):
    return Writer(scope, token, owner)


@each_database
def test_passing_costs_one_statement_and_passing_again_in_the_transaction_none(engine, statements, scope):
    passing = {"sqlite": 2}.get(
        engine.dialect.name, 1
    )  # the second where the mark stays; no round trip there
    for number in (1, passing):  # a new scope, a known one
        statements.clear()
        with Session(engine) as session, session.begin():
            pass_gate(session, scope, writer(scope, 5))
            assert len(statements) == number
            pass_gate(session, scope, writer(scope, 5))
            assert len(statements) == number

    statements.clear()
    with Session(engine) as session, session.begin():
        pass_gate(session, scope, writer(scope, 6))
    assert len(statements) == 1


@each_database
def test_nothing_is_remembered_beyond_the_transaction(engine, scope):
    with Session(engine) as session:
        pass_gate(session, scope, writer(scope, 5))
        session.rollback()
        with Session(engine) as other, other.begin():
            pass_gate(other, scope, writer(scope, 6, "other"))

        with pytest.raises(StaleToken):
            pass_gate(session, scope, writer(scope, 5))


@each_database
def test_what_a_savepoint_undid_is_passed_again(engine, scope, statements):
    if engine.dialect.name == "sqlite":
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with Session(engine) as session:
        session.connection()
        savepoint = session.begin_nested()
        pass_gate(session, scope, writer(scope, 5))
        savepoint.rollback()
        pass_gate(session, scope, writer(scope, 5))
        session.commit()

    with Session(engine) as session, pytest.raises(StaleToken):
        pass_gate(session, scope, writer(scope, 4))


@each_database
def test_a_newer_token_that_passed_in_a_savepoint_counts_after_it(engine, scope):
    if engine.dialect.name == "sqlite":
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with Session(engine) as session:
        pass_gate(session, scope, writer(scope, 5))
        with session.begin_nested():
            pass_gate(session, scope, writer(scope, 6))
        with pytest.raises(StaleToken):
            pass_gate(session, scope, writer(scope, 5))


@each_database
def test_of_two_tokens_in_one_transaction_the_older_is_stale(engine, scope):
    with Session(engine) as session:
        pass_gate(session, scope, writer(scope, 5))
        pass_gate(session, scope, writer(scope, 6))
        with pytest.raises(StaleToken):
            pass_gate(session, scope, writer(scope, 5))


@each_database
def test_once_lets_the_transaction_that_has_passed_pass_again_and_no_other(engine, scope):
    with Session(engine) as session, session.begin():
        pass_gate(session, scope, writer(scope, 5), once=True)
        pass_gate(session, scope, writer(scope, 5), once=True)

    with Session(engine) as session, pytest.raises(AlreadyDone):
        pass_gate(session, scope, writer(scope, 5), once=True)


@each_database
def test_once_is_to_be_asked_for_where_the_transaction_passes_first(engine, scope):
    with Session(engine) as session:
        pass_gate(session, scope, writer(scope, 5))
        with pytest.raises(ConfigError, match="once"):
            pass_gate(session, scope, writer(scope, 5), once=True)


@each_database
def test_connections_scoped_sessions_and_raw_connections_are_taken_too(engine, scope):
    with engine.begin() as connection:
        pass_gate(connection, scope, writer(scope, 5))
    scoped = scoped_session(sessionmaker(engine))
    pass_gate(scoped, scope, writer(scope, 6))
    scoped.commit()
    scoped.remove()
    raw = engine.raw_connection()
    pass_gate(raw.dbapi_connection, scope, writer(scope, 7))
    raw.commit()
    raw.close()

    with engine.begin() as connection, pytest.raises(StaleToken) as refused:
        pass_gate(connection, scope, writer(scope, 6))
    assert refused.value.seen == 7


@each_database
@pytest.mark.parametrize("where", ["engine", "options", "connection"])
def test_a_connection_that_commits_each_statement_is_refused(databases, name, scope, where):
    given = {"isolation_level": "AUTOCOMMIT"} if where == "engine" else {}
    engine = create_engine(databases(name).url(), **given)
    if where == "options":
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if where == "connection":
            connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(ConfigError, match="autocommit"):
            pass_gate(connection, scope, writer(scope, 5))
        found = connection.execute(text(f"SELECT count(*) FROM fence_gates WHERE scope = '{scope}'")).scalar()
    engine.dispose()

    assert found == 0


@pytest.mark.needs("postgres")
@pytest.mark.parametrize("name", ["postgresql"])
def test_a_serialization_failure_comes_out_as_the_databases_own_error(engine, scope):
    engine = engine.execution_options(isolation_level="REPEATABLE READ")
    with Session(engine) as old, Session(engine) as other:
        old.execute(text("SELECT 1 FROM fence_gates")).all()
        pass_gate(other, scope, writer(scope, 6))
        other.commit()

        with pytest.raises(OperationalError, match="could not serialize"):
            pass_gate(old, scope, writer(scope, 7))


@pytest.mark.parametrize(
    "thing", [create_engine("sqlite://"), MetaData(), AsyncSession()], ids=lambda x: type(x).__name__
)
def test_what_has_no_transaction_is_refused_by_name(thing):
    with pytest.raises(ConfigError, match="pass_gate_async|" + type(thing).__name__):
        pass_gate(thing, "k", writer("k", 5))


@each_database
@pytest.mark.parametrize("kind", ["session", "scoped", "connection"])
def test_async_sessions_and_connections(databases, name, scope, kind):
    async def run():
        engine = create_async_engine(databases(name).url(asynchronous=True))
        make = {
            "session": async_sessionmaker(engine),
            "scoped": async_scoped_session(async_sessionmaker(engine), asyncio.current_task),
            "connection": engine.connect,
        }[kind]
        for token in (5, 5, 6):
            async with make() as place:
                await pass_gate_async(place, scope, writer(scope, token))
                await place.commit()
        async with make() as place:
            with pytest.raises(StaleToken) as refused:
                await pass_gate_async(place, scope, writer(scope, 5))
        async with make() as place:
            with pytest.raises(AlreadyDone):
                await pass_gate_async(place, scope, writer(scope, 6), once=True)
        await engine.dispose()
        return refused.value.seen

    assert asyncio.run(run()) == 6


@each_database
def test_the_table_of_the_metadata_is_the_one_of_the_ddl(databases, engine, name):
    """As the database itself describes the two."""
    metadata = MetaData()
    table = gates_table(metadata)
    assert gates_table(metadata) is table

    def described():
        columns = inspect(engine).get_columns("fence_gates")
        key = inspect(engine).get_pk_constraint("fence_gates")["constrained_columns"]
        collations = [getattr(column["type"], "collation", None) for column in columns]
        return key, [(each["name"], str(each["type"]), each["nullable"]) for each in columns], collations

    by_ddl = described()
    with engine.begin() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    by_metadata = described()

    assert by_metadata == by_ddl
    assert "fence_gates" in str(CreateTable(table).compile(engine))
    with engine.begin() as connection:
        create_gates(connection)  # there already: nothing happens
    assert gate_ddl(name).startswith("CREATE TABLE IF NOT EXISTS fence_gates")


@each_database
def test_once_goes_through_again_in_the_transaction_that_has_passed(engine, scope):
    """Whatever became of the savepoint it passed in: it isn't committed yet."""

    def pass_once(session):
        pass_gate(session, scope, writer(scope, 5), once=True)
        passed.append(len(passed))

    passed = []
    with Session(engine) as session, session.begin():
        with session.begin_nested():
            with session.begin_nested():
                pass_once(session)
            pass_once(session)  # in the savepoint around
            with session.begin_nested():
                pass_once(session)  # in another one, further in
        pass_once(session)  # in the transaction itself
        with session.begin_nested() as undone:
            pass_once(session)
            undone.rollback()
        pass_once(session)
    assert len(passed) == 6

    with Session(engine) as session, session.begin(), pytest.raises(AlreadyDone):
        pass_once(session)


@pytest.mark.parametrize("name", parameters("postgresql", "mariadb"))
def test_a_driver_that_was_told_to_commit_by_itself_is_refused(databases, name, scope):
    """SQLAlchemy knows nothing of it: the lock on the gate would be gone at once."""
    careless = told_to_commit(create_engine(databases(name).url()))
    with Session(careless) as session, pytest.raises(ConfigError, match="autocommit"):
        pass_gate(session, scope, writer(scope, 5))
    careless.dispose()


@each_database
def test_after_an_error_of_the_database_a_gate_that_was_passed_is_asked_again(engine, statements, scope):
    """MySQL has rolled back all of the transaction, with its locks, where it tells of a deadlock."""

    def deadlock(*_):
        raise OperationalError("INSERT", {}, Exception("deadlock"))

    with Session(engine) as session, session.begin():
        pass_gate(session, scope, writer(scope, 5))
        event.listen(engine, "before_cursor_execute", deadlock)
        with pytest.raises(OperationalError):
            pass_gate(session, f"{scope}:other", writer(f"{scope}:other", 5))
        event.remove(engine, "before_cursor_execute", deadlock)

        statements.clear()
        pass_gate(session, scope, writer(scope, 5))
        assert statements


@pytest.mark.needs("postgres")
def test_an_async_connection_of_a_driver_is_refused(databases, scope):
    async def run():
        url = f"postgresql://postgres@127.0.0.1/{databases('postgresql').place}"
        async with await psycopg.AsyncConnection.connect(url) as connection:
            with pytest.raises(ConfigError, match="not psycopg"):
                pass_gate(connection, scope, writer(scope, 5))

    asyncio.run(run())
