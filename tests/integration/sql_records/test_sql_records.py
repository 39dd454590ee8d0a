"""Records on a plain connection of each database: the effect and the word that it is done are one."""

from __future__ import annotations

import random
import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pymysql
import pytest
from bench.drivers import levels, parameters

from celery_fence import ConfigError, StaleToken
from celery_fence.errors import AlreadyDone, ClaimMismatch, UnstorableResult
from celery_fence.fencing.idempotency import (
    LARGEST_RESULT,
    claim,
    create_records,
    delete_record,
    delete_records,
    find_record,
    list_records,
    once,
)
from celery_fence.fencing.idempotency.record import PAGE
from celery_fence.fencing.writer import Writer

SERIALIZATION_FAILURES = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
CONFLICTS = (*SERIALIZATION_FAILURES, pymysql.err.OperationalError, sqlite3.OperationalError)

each_database = pytest.mark.parametrize("name", parameters())
each_level = pytest.mark.parametrize(("name", "level"), levels("postgresql", "mariadb"))

AWKWARD = [
    "o'brien",
    "100%",
    "a:b",
    "%s",
    ":token",
    "ä",
    "AE",
    "ae",
    "trailing ",
    "trailing",
    "x" * 300,
    "x" * 301,
]


@pytest.fixture
def key():
    return f"payment:{uuid.uuid4().hex}"


@pytest.fixture
def in_thread():
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def writer(token, owner="somebody", lock_key="tenant:7"):
    return Writer(lock_key, token, owner)


def effect(connection, work):
    connection.cursor().execute(f"INSERT INTO effects (work) VALUES ('{work}')")
    return {"charged": work}


def effects(database, work):
    return database.run(f"SELECT count(*) FROM effects WHERE work = '{work}'")[0][0]


def pay(connection, key, token, **who):
    record = claim(connection, key=key, lease=writer(token, **who))
    return record.complete(effect(connection, key))


@each_database
def test_effect_and_record_are_committed_together(name, databases, connections, key):
    database = databases(name)
    mine, other = connections(database), connections(database)
    result = pay(mine, key, 5)
    mine.commit()

    with pytest.raises(AlreadyDone) as done:
        pay(other, key, 6)

    assert (done.value.has_result, done.value.result, done.value.record) == (True, result, key)
    assert effects(database, key) == 1


@each_database
def test_after_a_rollback_neither_is_there(name, databases, connections, key):
    database = databases(name)
    mine, other = connections(database), connections(database)
    pay(mine, key, 5)
    mine.rollback()

    assert effects(database, key) == 0
    assert find_record(other, key) is None
    other.rollback()
    pay(other, key, 5, owner="another")
    other.commit()
    assert effects(database, key) == 1


@each_level
def test_of_two_transactions_at_once_one_does_the_work(  # noqa: PLR0917 - fixtures
    name, level, databases, connections, in_thread, key
):
    database = databases(name)
    first, second = connections(database, level), connections(database, level)
    for connection in (first, second) if level == "REPEATABLE READ" else ():
        connection.cursor().execute("SELECT count(*) FROM fence_records")  # fixes the snapshot
    result = pay(first, key, 5)

    waiting = in_thread(pay, second, key, 6)
    database.wait_for_a_waiter()
    first.commit()

    error = waiting.exception(30)
    second.rollback()
    if isinstance(error, CONFLICTS):
        assert level != "READ COMMITTED"
    else:
        assert isinstance(error, AlreadyDone)
        assert error.result == result
    assert effects(database, key) == 1


@each_database
def test_of_twenty_at_once_one_does_the_work_and_all_have_its_result(name, databases, connections, key):
    """In ten rounds; a transaction that the database couldn't order runs again, as its user would have it."""
    database = databases(name)

    def run(connection, work, token):
        while True:
            try:
                result = pay(connection, work, token, owner=str(token))
                connection.commit()
            except AlreadyDone as done:
                connection.rollback()
                return done.result
            except CONFLICTS:
                connection.rollback()
            else:
                return result

    everybody = [connections(database) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        for number in range(10):
            work = f"{key[-20:]}/{number}"
            answers = pool.map(run, everybody, [work] * 20, random.Random(number).sample(range(1, 99), 20))
            assert list(answers) == [{"charged": work}] * 20
            assert effects(database, work) == 1


@pytest.mark.parametrize("name", parameters("postgresql", "mariadb"))
def test_who_waited_for_a_claim_that_rolled_back_does_the_work(name, databases, connections, in_thread, key):
    database = databases(name)
    first, second = connections(database), connections(database)
    pay(first, key, 6)

    waiting = in_thread(pay, second, key, 5, owner="another")
    database.wait_for_a_waiter()
    first.rollback()

    assert waiting.result(30) == {"charged": key}
    second.commit()
    assert effects(database, key) == 1


@each_database
def test_a_committed_claim_of_a_dead_run_is_taken_over_by_a_higher_token(name, databases, connections, key):
    database = databases(name)
    dead, successor = connections(database), connections(database)
    abandoned = claim(dead, key=key, lease=writer(5))
    dead.commit()
    pay(successor, key, 6, owner="successor")
    successor.commit()

    with pytest.raises(AlreadyDone):
        abandoned.complete("late")
    dead.rollback()
    found = find_record(dead, key)
    assert (found.token, found.owner, found.lock_key) == (6, "successor", "tenant:7")
    assert found.claimed <= found.done
    assert effects(database, key) == 1


@each_database
@pytest.mark.parametrize(("token", "owner"), [(4, "somebody"), (5, "another")])
def test_a_committed_claim_is_not_given_to_an_older_run(  # noqa: PLR0917 - fixtures
    name, token, owner, databases, connections, key
):
    database = databases(name)
    connection = connections(database)
    claim(connection, key=key, lease=writer(5))
    connection.commit()

    with pytest.raises(StaleToken) as stale:
        pay(connection, key, token, owner=owner)

    assert (stale.value.token, stale.value.seen) == (token, 5)
    connection.rollback()
    assert effects(database, key) == 0


@each_database
def test_a_claim_that_was_taken_over_is_not_completed(name, databases, connections, key):
    database = databases(name)
    connection = connections(database)
    stale = claim(connection, key=key, lease=writer(5))
    connection.commit()
    claim(connection, key=key, lease=writer(6))
    connection.commit()

    with pytest.raises(StaleToken) as refused:
        stale.complete("late")

    assert (refused.value.token, refused.value.seen) == (5, 6)
    connection.rollback()
    assert find_record(connection, key).done is None


@each_database
def test_the_run_that_claimed_goes_on_in_a_later_transaction(name, databases, connections, key):
    connection = connections(databases(name))
    claim(connection, key=key, lease=writer(5))
    connection.commit()
    record = claim(connection, key=key, lease=writer(5))
    connection.commit()
    record.complete([1, 2])
    connection.commit()

    for repeat in (lambda: claim(connection, key=key, lease=writer(5)), lambda: record.complete([1, 2])):
        with pytest.raises(AlreadyDone) as done:
            repeat()
        assert done.value.result == [1, 2]


@each_database
def test_a_claim_of_another_lock_key_is_an_error_that_names_both(name, databases, connections, key):
    connection = connections(databases(name))
    claim(connection, key=key, lease=writer(5, lock_key="tenant:8"))
    connection.commit()

    with pytest.raises(ClaimMismatch, match="same lock_key") as mismatch:
        claim(connection, key=key, lease=writer(6))
    assert (mismatch.value.record, mismatch.value.key, mismatch.value.claimed_under) == (
        key,
        "tenant:7",
        "tenant:8",
    )

    delete_record(connection, key)
    connection.commit()
    assert claim(connection, key=key, lease=writer(6)).kept


@each_database
@pytest.mark.parametrize("result", [object(), "x" * (LARGEST_RESULT + 1)], ids=["an object", "too large"])
def test_what_can_t_be_kept_is_refused_before_anything_is_lost(name, result, databases, connections, key):
    database = databases(name)
    connection = connections(database)
    record = claim(connection, key=key, lease=writer(5))
    effect(connection, key)

    with pytest.raises(UnstorableResult, match=key):
        record.complete(result)

    connection.rollback()
    assert effects(database, key) == 0
    assert find_record(connection, key) is None


@each_database
def test_a_large_result_comes_back_whole(name, databases, connections, key):
    connection = connections(databases(name))
    result = "ü" * (LARGEST_RESULT // 8)
    claim(connection, key=key, lease=writer(5)).complete(result)
    connection.commit()

    with pytest.raises(AlreadyDone) as done:
        claim(connection, key=key, lease=writer(6))

    assert done.value.result == result


@each_database
def test_completing_after_the_rollback_of_the_claim_is_an_error(name, databases, connections, key):
    connection = connections(databases(name))
    record = claim(connection, key=key, lease=writer(5))
    connection.rollback()

    with pytest.raises(ConfigError, match="rollback"):
        record.complete(None)


@each_database
def test_a_step_is_done_once_and_answers_what_it_returned_then(name, databases, connections, key):
    database = databases(name)
    connection = connections(database)
    answers = []
    for token in (5, 5, 6):
        answers.append(once(connection, "mail:1", effect, connection, key, key=key, lease=writer(token)))
        connection.commit()

    assert answers == [{"charged": key}] * 3
    assert effects(database, key) == 1


@each_database
def test_a_step_that_fails_is_not_done(name, databases, connections, key):
    connection = connections(databases(name))
    with pytest.raises(ZeroDivisionError):
        once(connection, "divide", lambda: 1 / 0, key=key, lease=writer(5))
    connection.commit()  # the caller goes on

    assert find_record(connection, key, "divide").done is None
    assert once(connection, "divide", lambda: 1 / 2, key=key, lease=writer(6)) == 0.5


@each_database
def test_a_crash_after_item_20_of_50_repeats_none_of_the_20(name, databases, connections, key):
    database = databases(name)

    def batch(token, *, crash_at=None):
        connection = connections(database)
        for number in range(50):
            if number == crash_at:
                return connection.rollback()
            work = f"{key[-20:]}/{number}"
            once(connection, f"mail:{number}", effect, connection, work, key=key, lease=writer(token))
            connection.commit()
        return None

    batch(5, crash_at=20)
    batch(6)

    assert [effects(database, f"{key[-20:]}/{number}") for number in range(50)] == [1] * 50


@each_database
def test_no_key_or_step_is_mistaken_for_another(name, databases, connections, key):
    connection = connections(databases(name))
    names = [(f"{key}{first}", second) for first in AWKWARD for second in AWKWARD]
    for number, (record, step) in enumerate(names):
        assert once(connection, step, lambda n: n, number, key=record, lease=writer(5)) == number
    connection.commit()

    answers = [once(connection, step, lambda: "again", key=record, lease=writer(6)) for record, step in names]

    assert answers == list(range(len(names)))


@each_database
def test_records_are_listed_in_pages_without_their_results(name, databases, connections, key):
    connection = connections(databases(name))
    for number in range(PAGE + 3):
        once(connection, f"{number:05}", lambda: None, key=key, lease=writer(5))
    claim(connection, key=key, lease=writer(5))
    connection.commit()

    found = [each for each in list_records(connection) if each.key == key]

    assert [each.step for each in found] == ["", *(f"{number:05}" for number in range(PAGE + 3))]
    assert {each.result for each in found} == {None}
    assert found[0].done is None
    assert found[1].size > 0
    assert delete_record(connection, key) == PAGE + 4
    connection.commit()
    assert find_record(connection, key) is None


@each_database
def test_retention_deletes_what_is_older_and_nothing_else(name, databases, connections, key):
    connection = connections(databases(name))
    ages = {
        "new claim": (10, None),
        "new": (10, 10),
        "lately done": (1000, 10),
        "old claim": (1000, None),
        "old": (1000, 1000),
    }
    for age, (claimed, done) in ages.items():
        claim(connection, key=f"{key}/{age}", lease=writer(5)).complete(None)
        done_at = "NULL" if done is None else f"done_at - {done}"
        connection.cursor().execute(
            f"UPDATE fence_records SET claimed_at = claimed_at - {claimed}, done_at = {done_at}"
            f" WHERE record_key = '{key}/{age}'"
        )
    connection.commit()

    assert delete_records(connection, older_than=500) == 2
    connection.commit()

    left = {each.key for each in list_records(connection) if each.key.startswith(key)}
    assert left == {f"{key}/{age}" for age in ("new claim", "new", "lately done")}


@each_database
def test_a_connection_in_autocommit_mode_is_refused(name, databases, connections, key):
    database = databases(name)
    connection = connections(database, autocommit=True)

    with pytest.raises(ConfigError, match="transaction"):
        claim(connection, key=key, lease=writer(5))
    assert find_record(connection, key) is None


@each_database
def test_making_the_table_again_changes_nothing(name, databases, connections, key):
    connection = connections(databases(name))
    claim(connection, key=key, lease=writer(5)).complete("kept")
    connection.commit()

    create_records(connection)
    connection.commit()

    assert find_record(connection, key).done
