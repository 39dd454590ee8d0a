"""The scope gate with two real connections, on each database and isolation level."""

from __future__ import annotations

import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import psycopg
import pymysql
import pytest
from bench.drivers import PATIENCE, levels, parameters

from celery_fence import ConfigError, StaleToken
from celery_fence.errors import AlreadyDone
from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.writer import Writer

SERIALIZATION_FAILURES = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)

each_level = pytest.mark.parametrize(("name", "level"), levels())
each_level_of_a_server = pytest.mark.parametrize(("name", "level"), levels("postgresql", "mariadb"))
each_database = pytest.mark.parametrize("name", parameters())


@pytest.fixture
def scope():
    return f"tenant:{uuid.uuid4().hex}:sync"


@pytest.fixture
def in_thread():
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def writer(scope, token, owner="somebody"):
    return Writer(scope, token, owner)


def mark(database, scope):
    rows = database.run(
        f"SELECT last_fencing_token, last_fencing_owner FROM fence_gates WHERE scope = '{scope}'"
    )
    return tuple(rows[0]) if rows else None


def pass_and_commit(connection, scope, token, owner="somebody", **options):
    pass_gate(connection, scope, writer(scope, token, owner), **options)
    connection.commit()


def look(connection):
    """Begin the transaction with a plain read, which fixes its snapshot where there is one."""
    cursor = connection.cursor()
    cursor.execute("SELECT count(*) FROM fence_gates")
    cursor.fetchall()


@each_level
def test_a_stale_writer_is_refused_before_its_first_statement(databases, connections, scope, name, level):
    database = databases(name)
    frozen, successor = connections(database, level), connections(database, level)
    pass_and_commit(frozen, scope, 5)
    pass_and_commit(successor, scope, 6, "successor")

    with pytest.raises(StaleToken) as refused:
        pass_gate(frozen, scope, writer(scope, 5))
    frozen.rollback()

    assert (refused.value.scope, refused.value.token, refused.value.seen) == (scope, 5, 6)
    assert mark(database, scope) == (6, "successor")


@each_level
def test_the_same_run_passes_again_in_its_next_transaction(databases, connections, scope, name, level):
    connection = connections(databases(name), level)

    for _ in range(3):
        pass_and_commit(connection, scope, 5)

    assert mark(databases(name), scope) == (5, "somebody")


@each_level
def test_an_equal_token_of_another_owner_is_refused(databases, connections, scope, name, level):
    connection = connections(databases(name), level)
    pass_and_commit(connection, scope, 5, "one")

    with pytest.raises(StaleToken, match="of another owner"):
        pass_gate(connection, scope, writer(scope, 5, "two"))
    connection.rollback()

    assert mark(databases(name), scope) == (5, "one")


@each_level
def test_a_rollback_leaves_the_mark_as_it_was(databases, connections, scope, name, level):
    database = databases(name)
    connection = connections(database, level)

    pass_gate(connection, scope, writer(scope, 5))
    connection.rollback()
    assert mark(database, scope) is None

    pass_and_commit(connection, scope, 6)
    pass_gate(connection, scope, writer(scope, 7))
    connection.rollback()
    assert mark(database, scope) == (6, "somebody")


@each_level_of_a_server
@pytest.mark.parametrize("first", [True, False], ids=["a new scope", "a known scope"])
@pytest.mark.parametrize("token", [5, 7])
def test_a_second_holder_waits_for_the_first_ones_commit(
    databases, connections, scope, in_thread, *, name, level, first, token
):
    """And then passes, or is refused; or is told to run again where the database can't order the two."""
    database = databases(name)
    one, two = connections(database, level), connections(database, level)
    if not first:
        pass_and_commit(one, scope, 4)
    if level != "SERIALIZABLE":  # where MariaDB's plain reads lock
        look(two)
    pass_gate(one, scope, writer(scope, 6, "one"))

    waits = in_thread(pass_gate, two, scope, writer(scope, token, "two"))
    database.wait_for_a_waiter()
    assert not waits.done()
    one.commit()

    if name == "postgresql" and level != "READ COMMITTED":
        with pytest.raises(SERIALIZATION_FAILURES):
            waits.result(PATIENCE)
        two.rollback()
        waits = in_thread(pass_gate, two, scope, writer(scope, token, "two"))
    with pytest.raises(StaleToken) if token < 6 else nullcontext():
        waits.result(PATIENCE)
        two.commit()
    two.rollback()
    assert mark(database, scope) == ((6, "one") if token < 6 else (7, "two"))


@each_level_of_a_server
def test_a_second_holder_goes_on_when_the_first_one_rolls_back(
    databases, connections, scope, in_thread, *, name, level
):
    database = databases(name)
    one, two = connections(database, level), connections(database, level)
    pass_and_commit(one, scope, 4)
    pass_gate(one, scope, writer(scope, 6, "one"))

    waits = in_thread(pass_gate, two, scope, writer(scope, 5, "two"))
    database.wait_for_a_waiter()
    one.rollback()
    waits.result(PATIENCE)
    two.commit()

    assert mark(database, scope) == (5, "two")


@pytest.mark.parametrize("first", [True, False], ids=["a new scope", "a known scope"])
@pytest.mark.parametrize("token", [5, 6, 7])
def test_in_sqlite_nobody_passes_while_another_is_in(databases, connections, scope, first, token):
    database = databases("sqlite")
    one, two = connections(database), connections(database, busy_timeout=0)
    if not first:
        pass_and_commit(one, scope, 4)
    pass_gate(one, scope, writer(scope, 6, "one"))

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        pass_gate(two, scope, writer(scope, token, "two"))
    one.commit()

    if token == 7:
        pass_and_commit(two, scope, 7, "two")
    else:
        with pytest.raises(StaleToken):
            pass_gate(two, scope, writer(scope, token, "two"))


def test_in_sqlite_a_snapshot_that_became_old_is_told_apart_from_a_stale_token(databases, connections, scope):
    database = databases("sqlite")
    old, other = connections(database), connections(database)
    old.execute("BEGIN")
    look(old)
    pass_and_commit(other, scope, 4)

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        pass_gate(old, scope, writer(scope, 7))
    old.rollback()

    pass_and_commit(old, scope, 7)


@pytest.mark.needs("mariadb")
@pytest.mark.parametrize("token", [5, 7])
def test_an_old_snapshot_of_mariadb_doesnt_hide_the_newer_token(databases, connections, scope, token):
    database = databases("mariadb")
    old, other = connections(database, "REPEATABLE READ"), connections(database)
    pass_and_commit(other, scope, 4)
    look(old)
    pass_and_commit(other, scope, 6, "other")

    if token == 5:
        with pytest.raises(StaleToken) as refused:
            pass_gate(old, scope, writer(scope, 5))
        assert refused.value.seen == 6
    else:
        pass_and_commit(old, scope, 7)
        assert mark(database, scope) == (7, "somebody")


@pytest.mark.needs("mariadb")
def test_a_deadlock_of_mariadb_is_told_apart_from_a_stale_token(databases, connections, scope, in_thread):
    database = databases("mariadb")
    one, two = connections(database), connections(database)
    left, right = f"{scope}:left", f"{scope}:right"
    pass_and_commit(one, left, 1)
    pass_and_commit(one, right, 1)
    pass_gate(one, left, writer(left, 5, "one"))
    pass_gate(two, right, writer(right, 5, "two"))

    waits = in_thread(pass_gate, two, left, writer(left, 6, "two"))
    database.wait_for_a_waiter()
    errors = []
    for attempt in (lambda: pass_gate(one, right, writer(right, 6, "one")), lambda: waits.result(PATIENCE)):
        try:
            attempt()
        except pymysql.err.OperationalError as error:
            errors.append(error.args[0])

    assert errors == [1213]


@pytest.mark.needs("postgres")
def test_a_deadlock_of_postgresql_is_told_apart_from_a_stale_token(databases, connections, scope, in_thread):
    database = databases("postgresql")
    one, two = connections(database), connections(database)
    left, right = f"{scope}:left", f"{scope}:right"
    pass_gate(one, left, writer(left, 5, "one"))
    pass_gate(two, right, writer(right, 5, "two"))

    waits = in_thread(pass_gate, two, left, writer(left, 6, "two"))
    database.wait_for_a_waiter()
    errors = []
    for connection, attempt in (
        (one, lambda: pass_gate(one, right, writer(right, 6, "one"))),
        (two, lambda: waits.result(PATIENCE)),
    ):
        try:
            attempt()
        except psycopg.errors.DeadlockDetected as error:
            errors.append(error)
            connection.rollback()

    assert len(errors) == 1


@each_level
def test_once_lets_one_transaction_of_a_token_through(databases, connections, scope, name, level):
    database = databases(name)
    connection, again = connections(database, level), connections(database, level)
    pass_and_commit(connection, scope, 5, once=True)

    with pytest.raises(AlreadyDone) as done:
        pass_gate(again, scope, writer(scope, 5), once=True)
    again.rollback()

    assert (done.value.scope, done.value.token) == (scope, 5)
    with pytest.raises(StaleToken):
        pass_gate(again, scope, writer(scope, 5, "another"), once=True)
    again.rollback()
    with pytest.raises(StaleToken):
        pass_gate(again, scope, writer(scope, 4), once=True)
    again.rollback()
    pass_and_commit(again, scope, 6, once=True)
    assert mark(database, scope) == (6, "somebody")


@each_level
def test_once_lets_a_transaction_through_whose_forerunner_was_rolled_back(
    databases, connections, scope, name, level
):
    connection = connections(databases(name), level)
    pass_gate(connection, scope, writer(scope, 5), once=True)
    connection.rollback()

    pass_and_commit(connection, scope, 5, once=True)

    assert mark(databases(name), scope) == (5, "somebody")


@pytest.mark.parametrize("name", parameters("postgresql", "mariadb"))
def test_once_waits_for_a_transaction_of_the_same_token_that_may_yet_commit(
    databases, connections, scope, in_thread, name
):
    """Its reply was lost; whether it commits is not known, and both may not."""
    database = databases(name)
    lost, again = connections(database, "READ COMMITTED"), connections(database, "READ COMMITTED")
    pass_gate(lost, scope, writer(scope, 5), once=True)

    waits = in_thread(pass_gate, again, scope, writer(scope, 5), once=True)
    database.wait_for_a_waiter()
    lost.commit()

    with pytest.raises(AlreadyDone):
        waits.result(PATIENCE)


@each_database
def test_scopes_that_differ_in_case_accents_or_a_space_have_marks_of_their_own(
    databases, connections, scope, name
):
    connection = connections(databases(name))
    like = [scope, scope.upper(), f"{scope} ", f"{scope}é", f"{scope}e", f"{scope}\0", f"{scope}\n"]

    for token, each in enumerate(reversed(like), start=1):
        pass_gate(connection, each, writer(each, token))
    for token, each in enumerate(reversed(like), start=1):
        pass_gate(connection, each, writer(each, token))
        if token > 1:
            with pytest.raises(StaleToken) as refused:
                pass_gate(connection, each, writer(each, token - 1))
            assert refused.value.seen == token


@each_database
def test_a_scope_may_be_longer_than_its_column(databases, connections, scope, name):
    connection = connections(databases(name))
    one, two = (f"{scope}:{'é' * 400}:{end}" for end in "12")

    pass_gate(connection, one, writer(one, 9))
    pass_gate(connection, two, writer(two, 5))

    with pytest.raises(StaleToken):
        pass_gate(connection, one, writer(one, 8))


@pytest.mark.needs("mariadb")
@pytest.mark.parametrize("found_rows", [False, True])
def test_whether_mariadb_counts_found_or_changed_rows_makes_no_difference(
    databases, connections, scope, found_rows
):
    flag = pymysql.constants.CLIENT.FOUND_ROWS if found_rows else 0
    connection = connections(databases("mariadb"), client_flag=flag)

    for token in (5, 5, 6):
        pass_and_commit(connection, scope, token)
    for token, owner in ((5, "somebody"), (6, "another")):
        with pytest.raises(StaleToken):
            pass_gate(connection, scope, writer(scope, token, owner))
    with pytest.raises(AlreadyDone):
        pass_gate(connection, scope, writer(scope, 6), once=True)


@pytest.mark.needs("postgres")
def test_cursors_that_make_objects_of_rows_are_no_hindrance_in_psycopg(databases, connections, scope):
    connection = connections(databases("postgresql"), row_factory=psycopg.rows.kwargs_row(lambda **_: None))

    pass_and_commit(connection, scope, 5)
    with pytest.raises(StaleToken):
        pass_gate(connection, scope, writer(scope, 4))


@pytest.mark.needs("mariadb")
def test_cursors_that_make_dicts_of_rows_are_no_hindrance_in_pymysql(databases, connections, scope):
    connection = connections(databases("mariadb"), cursorclass=pymysql.cursors.DictCursor)

    pass_and_commit(connection, scope, 5)
    with pytest.raises(StaleToken) as refused:
        pass_gate(connection, scope, writer(scope, 4))
    assert refused.value.seen == 5


@pytest.mark.needs("postgres")
def test_psycopg_in_autocommit_mode_is_refused_outside_of_a_transaction_block(databases, connections, scope):
    database = databases("postgresql")
    connection = connections(database, autocommit=True)
    with pytest.raises(ConfigError, match=r"connection\.transaction\(\)"):
        pass_gate(connection, scope, writer(scope, 5))
    assert mark(database, scope) is None

    with connection.transaction():
        pass_gate(connection, scope, writer(scope, 5))
        assert mark(database, scope) is None
    assert mark(database, scope) == (5, "somebody")


@pytest.mark.needs("mariadb")
def test_pymysql_in_autocommit_mode_is_refused_outside_of_a_transaction(databases, connections, scope):
    database = databases("mariadb")
    connection = connections(database, autocommit=True)
    with pytest.raises(ConfigError, match=r"connection\.begin\(\)"):
        pass_gate(connection, scope, writer(scope, 5))
    assert mark(database, scope) is None

    connection.begin()
    pass_gate(connection, scope, writer(scope, 5))
    connection.rollback()
    assert mark(database, scope) is None
