"""What the gate decides and says, in this process."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from celery_fence import ConfigError, FencedTask, StaleToken, hold, signals
from celery_fence.errors import AlreadyDone, ScopeMismatch, UnfencedWrite
from celery_fence.fencing.gate import create_gates, gate_ddl, mysql, pass_gate
from celery_fence.fencing.gate.mark import Answer, Mark, Wish, kept_scope
from celery_fence.fencing.writer import Writer
from celery_fence.locking import current
from celery_fence.locking.null_lease import NullLease


@pytest.fixture
def connection():
    with closing(sqlite3.connect(":memory:")) as connection:
        create_gates(connection)
        connection.commit()
        yield connection


@pytest.fixture
def told():
    refusals = []

    def hears(sender, **facts):
        refusals.append(facts)

    signals.stale_write_refused.connect(hears)
    yield refusals
    signals.stale_write_refused.disconnect(hears)


def marks(connection):
    return connection.execute(
        "SELECT scope, last_fencing_token, last_fencing_owner FROM fence_gates"
    ).fetchall()


def test_the_lease_of_a_fenced_task_is_found(app, connection):
    @app.task(base=FencedTask, lock_key="tenant:<tenant>:sync")
    def sync(tenant, *, fencing_token):
        pass_gate(connection, f"tenant:{tenant}:sync")
        return fencing_token

    token = sync(7)

    assert [(scope, seen) for scope, seen, _ in marks(connection)] == [("tenant:7:sync", token)]


def test_the_lease_of_a_block_around_is_found_by_its_key(app, connection):
    with hold("outer", app=app) as outer, hold("inner", app=app) as inner:
        pass_gate(connection, "outer")
        pass_gate(connection, "inner")

    assert {(scope, seen) for scope, seen, _ in marks(connection)} == {
        ("outer", outer.token),
        ("inner", inner.token),
    }


def test_a_lease_on_another_key_is_refused_before_anything_is_asked(connection):
    with pytest.raises(ScopeMismatch, match="tenant:8"):
        pass_gate(connection, "tenant:8", Writer("tenant:7", 5, "somebody"))

    assert marks(connection) == []


def test_no_lease_at_all_is_refused(connection):
    with pytest.raises(UnfencedWrite):
        pass_gate(connection, "tenant:7")


def test_a_refusal_is_told_with_its_facts(app, connection, told):
    with hold("tenant:7", app=app) as lease:
        pass_gate(connection, "tenant:7", Writer("tenant:7", lease.token + 1, "successor"))
        with pytest.raises(StaleToken):
            pass_gate(connection, "tenant:7")

    [facts] = told
    assert (facts["key"], facts["token"], facts["seen"]) == ("tenant:7", lease.token, lease.token + 1)
    assert (facts["seen_owner"], facts["refused"]) == ("successor", True)


def test_in_shadow_mode_a_stale_writer_is_told_of_and_goes_on(app, connection, told):
    with hold("tenant:7", app=app) as lease:
        pass_gate(connection, "tenant:7", Writer("tenant:7", lease.token + 1, "successor"))
        pass_gate(connection, "tenant:7", mode="shadow")

    assert [facts["refused"] for facts in told] == [False]
    assert marks(connection) == [("tenant:7", lease.token + 1, "successor")]


def test_in_shadow_mode_once_lets_a_second_transaction_through(connection):
    writer = Writer("k", 5, "somebody", "shadow")
    for _ in range(2):
        pass_gate(connection, "k", writer, once=True)
        connection.commit()

    assert marks(connection) == [("k", 5, "somebody")]


def test_in_mode_off_the_database_is_not_asked():
    pass_gate(object(), "k", Writer("k", 5, "somebody"), mode="off")


def test_a_run_without_a_token_is_refused_or_passes_and_is_told_of(connection):
    seen = []
    nobody = NullLease("source", seen.append)
    with current.entered(current.Frame(nobody, None)):
        with pytest.raises(UnfencedWrite):
            pass_gate(connection, "k")
        pass_gate(connection, "k", mode="shadow")

    assert [event.token for event in seen] == [None]
    assert marks(connection) == []


def test_once_answers_the_second_transaction_with_what_it_is(connection):
    writer = Writer("k", 5, "somebody")
    pass_gate(connection, "k", writer, once=True)
    connection.commit()

    with pytest.raises(AlreadyDone) as done:
        pass_gate(connection, "k", writer, once=True)
    assert (done.value.scope, done.value.token) == ("k", 5)


def test_a_connection_that_commits_each_statement_is_refused():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_gates(connection)
        with pytest.raises(ConfigError, match="BEGIN IMMEDIATE"):
            pass_gate(connection, "k", Writer("k", 5, "somebody"))
        assert marks(connection) == []

        connection.execute("BEGIN")
        pass_gate(connection, "k", Writer("k", 5, "somebody"))
        assert marks(connection) == [("k", 5, "somebody")]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="also on CI: sqlite3 has it from Python 3.12 on")
@pytest.mark.parametrize("autocommit", [True, False])
def test_sqlites_own_autocommit_is_respected(autocommit):
    with closing(sqlite3.connect(":memory:", autocommit=autocommit)) as connection:
        create_gates(connection)
        if autocommit:
            with pytest.raises(ConfigError):
                pass_gate(connection, "k", Writer("k", 5, "somebody"))
        else:
            pass_gate(connection, "k", Writer("k", 5, "somebody"))
            assert marks(connection) == [("k", 5, "somebody")]


def test_rows_of_a_users_own_kind_are_no_hindrance(connection):
    connection.row_factory = lambda *_: None
    pass_gate(connection, "k", Writer("k", 5, "somebody"))

    with pytest.raises(StaleToken) as refused:
        pass_gate(connection, "k", Writer("k", 4, "somebody"))
    assert refused.value.seen == 5


def test_a_connection_class_of_a_users_own_is_known_by_its_base():
    class Traced(sqlite3.Connection):
        pass

    with closing(sqlite3.connect(":memory:", factory=Traced)) as connection:
        create_gates(connection)
        pass_gate(connection, "k", Writer("k", 5, "somebody"))
        assert marks(connection) == [("k", 5, "somebody")]


@pytest.mark.parametrize(
    "thing", [object(), "sqlite://", sqlite3.connect(":memory:").cursor()], ids=lambda it: type(it).__name__
)
def test_what_is_no_connection_is_refused_by_name(thing):
    with pytest.raises(ConfigError, match=type(thing).__name__):
        pass_gate(thing, "k", Writer("k", 5, "somebody"))


def test_a_database_without_statements_is_refused_by_name():
    with pytest.raises(ConfigError, match="oracle"):
        gate_ddl("oracle")


class Driver:
    """A MySQL driver that doesn't tell what LAST_INSERT_ID was set to, and perhaps not how many rows there were."""

    def __init__(self, kept, rowcount):
        self.kept = kept
        self.rowcount = rowcount

    def ask(self, sql, parameters):
        if sql == mysql.READ:
            return Answer([(self.kept.token, self.kept.owner)], 1, None)
        if self.kept.token < parameters["token"]:
            self.kept = Mark(parameters["token"], parameters["owner"])
        return Answer([], self.rowcount, None)


@pytest.mark.parametrize("rowcount", [-1, 0, 1, 2])
@pytest.mark.parametrize(("token", "passes"), [(4, False), (5, True), (6, True)])
def test_where_a_mysql_driver_tells_nothing_the_row_itself_is_asked(rowcount, token, passes):
    driver = Driver(Mark(5, "somebody"), rowcount)
    wish = Wish("k", Mark(token, "somebody"))

    outcome = mysql.move(driver.ask, wish, once=False)

    assert (outcome.seen == wish.mark) is passes


def test_where_a_mysql_driver_tells_nothing_once_is_refused():
    driver = Driver(Mark(5, "somebody"), -1)

    with pytest.raises(ConfigError, match="lastrowid"):
        mysql.move(driver.ask, Wish("k", Mark(6, "somebody")), once=True)


WITHOUT = """
import sqlite3, sys
for library in sys.argv[1:]:
    sys.modules[library] = None
from celery_fence import StaleToken
from celery_fence.fencing.writer import Writer
if "sqlalchemy" in sys.argv:
    from celery_fence.fencing.gate import create_gates, pass_gate
    connection = sqlite3.connect(":memory:")
    create_gates(connection)
else:
    from sqlalchemy import Column, Integer, MetaData, Table, create_engine
    from celery_fence.fencing.sqlalchemy import fence_columns
    from celery_fence.fencing.sqlalchemy.gate import gates_table, pass_gate
    from celery_fence.fencing.sqlalchemy.trigger import fence_trigger
    metadata = MetaData()
    gates_table(metadata)
    fence_trigger(Table("payouts", metadata, Column("id", Integer, primary_key=True), *fence_columns()))
    connection = create_engine("sqlite://").connect()
    metadata.create_all(connection)
pass_gate(connection, "k", Writer("k", 5, "somebody"))
try:
    pass_gate(connection, "k", Writer("k", 4, "frozen"))
except StaleToken:
    print("refused")
"""


@pytest.mark.parametrize(
    "missing", [["alembic", "django"], ["alembic", "django", "sqlalchemy"]], ids=" ".join
)
def test_the_gate_works_without_what_it_isnt_used_with(missing):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *missing], capture_output=True, text=True, timeout=100, check=False
    )

    assert done.stdout == "refused\n", done.stderr


def test_a_short_scope_is_kept_as_it_is():
    assert kept_scope("tenant:7:sync") == "tenant:7:sync"
    assert kept_scope("é" * 127) == "é" * 127


@pytest.mark.parametrize(
    "scope",
    ["x" * 256, "é" * 128, "k ", "k\0", "k\ud800", " "],
    ids=["long", "bytes", "space", "nul", "half", "only"],
)
def test_what_the_column_cant_hold_is_kept_as_a_head_and_a_digest(scope):
    kept = kept_scope(scope)

    assert kept != scope
    assert len(kept.encode()) <= 255
    assert kept == kept_scope(scope)
    assert kept_scope(scope + "x") != kept
