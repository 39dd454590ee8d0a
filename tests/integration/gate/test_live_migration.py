"""A filled table gets its fence while a writer that knows of no fence goes on writing."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from bench.drivers import BUSY_TIMEOUT, PATIENCE, parameters
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import celery_fence.fencing.sqlalchemy.alembic  # noqa: F401 - registers ours
from celery_fence import StaleToken
from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.gate import create_gates, pass_gate
from celery_fence.fencing.sqlalchemy import fence_columns
from celery_fence.fencing.trigger import trigger_refusals
from celery_fence.fencing.writer import Writer

ROWS = 2000


class OldWriter:
    """A program from before the migration: it updates and inserts, and knows none of the new columns."""

    def __init__(self, database):
        self.database = database
        self.writes = 0
        self.stopping = threading.Event()
        self.written = threading.Condition()
        self.failure = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            with closing(self.database.connect()) as connection:
                try:
                    while not self.stopping.is_set():
                        self._write(connection)
                finally:
                    connection.rollback()  # SQLite keeps its lock while an error's traceback has the cursor
        except Exception as error:  # noqa: BLE001 - raised in the test's own thread
            self.failure = error
        finally:
            with self.written:
                self.written.notify_all()

    def _write(self, connection):
        cursor = connection.cursor()
        cursor.execute(f"UPDATE payouts SET amount = amount + 1 WHERE id = {self.writes % ROWS + 1}")
        cursor.execute(f"INSERT INTO payouts (id, amount) VALUES ({ROWS + 1 + self.writes}, 1)")
        connection.commit()
        with self.written:
            self.writes += 1
            self.written.notify_all()

    def wait_for_more(self, number=20):
        """Return when it has written some more times; fails when it failed."""
        with self.written:
            goal = self.writes + number
            assert self.written.wait_for(lambda: self.writes >= goal or self.failure, PATIENCE)
        if self.failure:
            raise self.failure

    def stop(self):
        self.stopping.set()
        self.thread.join(PATIENCE)


@pytest.fixture
def filled(fresh_database, name):
    database = fresh_database(name)
    values = ", ".join(f"({number}, 0)" for number in range(1, ROWS + 1))
    database.run(
        "CREATE TABLE payouts (id BIGINT PRIMARY KEY, amount INT NOT NULL)",
        f"INSERT INTO payouts (id, amount) VALUES {values}",
    )
    return database


@pytest.fixture
def old_writer(filled):
    writer = OldWriter(filled)
    writer.thread.start()
    yield writer
    writer.stop()


@pytest.fixture
def engine(filled, name):
    engine = create_engine(filled.url(), connect_args={"timeout": BUSY_TIMEOUT} if name == "sqlite" else {})
    yield engine
    engine.dispose()


@contextmanager
def migration(engine):
    """What is inside an Alembic revision's `upgrade`."""
    with engine.begin() as connection:
        yield Operations(MigrationContext.configure(connection)), connection


def prepare(engine, old_writer):
    """Each step in a migration of its own, with the old writer at work before, between and after them."""
    old_writer.wait_for_more()
    with migration(engine) as (op, _):
        for column in fence_columns():
            op.add_column("payouts", column)
    old_writer.wait_for_more()
    with migration(engine) as (op, connection):
        create_gates(connection)
        op.create_fence_trigger("payouts", mode="shadow")
    old_writer.wait_for_more()


def write_fenced(engine, token, owner="run"):
    scope = "payout:1"
    with Session(engine) as session, session.begin(), trigger_refusals(Writer(scope, token, owner)):
        pass_gate(session, scope, Writer(scope, token, owner))
        session.execute(
            text(
                "UPDATE payouts SET amount = -1, last_fencing_token = :token, last_fencing_owner = :owner WHERE id = 1"
            ),
            {"token": token, "owner": owner},
        )


@pytest.mark.parametrize("name", parameters())
def test_the_old_writer_never_stops_and_the_new_one_is_fenced(filled, engine, old_writer, name):
    prepare(engine, old_writer)

    write_fenced(engine, 6)
    with pytest.raises(StaleToken):
        write_fenced(engine, 5)
    old_writer.wait_for_more()
    old_writer.stop()

    assert old_writer.failure is None
    assert filled.run("SELECT count(*) FROM payouts WHERE last_fencing_token = 0")[0][0] == (
        ROWS + old_writer.writes - 1
    )
    assert filled.run("SELECT last_fencing_token, last_fencing_owner FROM payouts WHERE id = 1")[0] == (
        6,
        "run",
    )
    written_down = filled.run("SELECT count(*) FROM fence_sightings WHERE what = 'unfenced'")[0][0]
    if name == "mariadb":  # where they can't be told
        assert written_down == 0
    else:
        assert 0 < written_down < old_writer.writes


@pytest.mark.parametrize("name", parameters("postgresql"))
def test_once_nobody_writes_without_a_fence_the_trigger_is_made_to_refuse(filled, engine, old_writer):
    prepare(engine, old_writer)
    with migration(engine) as (op, _):
        op.create_fence_trigger("payouts")
    with pytest.raises(UnfencedWrite), trigger_refusals():
        old_writer.wait_for_more(10**9)

    write_fenced(engine, 6)
    with pytest.raises(StaleToken):
        write_fenced(engine, 5)


def test_the_mixins_columns_can_be_added_to_a_filled_table():
    token, owner = fence_columns()

    assert (token.nullable, str(token.server_default.arg)) == (False, "0")
    assert owner.nullable
