"""
Twenty concurrent writers with random tokens against the gate and the trigger, on each database.

A few rounds here; ``FENCE_ROUNDS=1000`` for as many as it takes.
"""

from __future__ import annotations

import os
import threading
from contextlib import closing

import pytest
from bench.contest import Entry, contest, violations
from bench.drivers import parameters
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_fence import StaleToken
from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.trigger import FenceTrigger, trigger_refusals
from celery_fence.fencing.writer import Writer

KEY = "account:1"

ROUNDS = int(os.environ.get("FENCE_ROUNDS", "5"))
TABLES = [
    (
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, value INT NOT NULL,"
        " last_fencing_token BIGINT NOT NULL DEFAULT 0, last_fencing_owner VARCHAR(64))"
    ),
    "CREATE TABLE ledger (value INT NOT NULL, token BIGINT NOT NULL, owner VARCHAR(64) NOT NULL)",
    "INSERT INTO accounts (id, value) VALUES (1, 0)",
]

FENCED = (
    "UPDATE accounts SET {change}, last_fencing_token = {bid.token}, last_fencing_owner = '{bid.owner}'"
    " WHERE id = 1"
)
NOTE = "INSERT INTO ledger (value, token, owner) VALUES ({value}, {bid.token}, '{bid.owner}')"


@pytest.fixture
def books(databases, request):
    """A database with one account and an empty ledger."""

    def get(name):
        database = databases(name)
        request.addfinalizer(lambda: database.run("DROP TABLE accounts", "DROP TABLE ledger"))
        database.run(*TABLES)
        return database

    return get


class Writers:
    """Each thread of the contest writes on a connection of its own."""

    def __init__(self, database):
        self.database = database
        self.here = threading.local()
        self.opened = []

    @property
    def connection(self):
        if not hasattr(self.here, "connection"):
            self.here.connection = self.database.connect()
            self.opened.append(self.here.connection)
        return self.here.connection

    def __call__(self, bid):
        """One transaction; False where it was refused."""
        connection = self.connection
        try:
            self.write(connection, bid)
            connection.commit()
        except StaleToken:
            return False
        finally:
            connection.rollback()
        return True

    def close(self):
        for connection in self.opened:
            connection.close()


def read(cursor):
    cursor.execute("SELECT value FROM accounts WHERE id = 1")
    return cursor.fetchone()[0]


def read_and_write(cursor, bid):
    """As an ORM does: two of them at a time would lose one of two changes."""
    value = read(cursor) + 1
    cursor.execute(FENCED.format(change=f"value = {value}", bid=bid))
    cursor.execute(NOTE.format(value=value, bid=bid))


def count_up(cursor, bid):
    """As careful raw SQL does: no change is lost."""
    cursor.execute(FENCED.format(change="value = value + 1", bid=bid))
    cursor.execute(NOTE.format(value=read(cursor), bid=bid))


class ByGate(Writers):
    def write(self, connection, bid):
        pass_gate(connection, KEY, Writer(KEY, bid.token, bid.owner))
        read_and_write(connection.cursor(), bid)


class BySession(Writers):
    @property
    def connection(self):
        if not hasattr(self.here, "connection"):
            self.here.connection = Session(create_engine(self.database.url()))
            self.opened.append(self.here.connection)
        return self.here.connection

    def write(self, session, bid):
        pass_gate(session, KEY, Writer(KEY, bid.token, bid.owner))
        read_and_write(session.connection().connection.cursor(), bid)


class ByTrigger(Writers):
    def write(self, connection, bid):
        with trigger_refusals(Writer(KEY, bid.token, bid.owner)):
            count_up(connection.cursor(), bid)


class ByNothing(Writers):
    def write(self, connection, bid):
        read_and_write(connection.cursor(), bid)


class ByCounting(Writers):
    def write(self, connection, bid):
        count_up(connection.cursor(), bid)


def hold(database, guard, rounds=ROUNDS):
    """The contest, and what the checker finds in the books."""
    writers = guard(database)
    with closing(writers):
        outcome = contest(writers, rounds=rounds)
    ledger = [Entry(*row) for row in database.run("SELECT value, token, owner FROM ledger ORDER BY value")]
    final = Entry(*database.run("SELECT value, last_fencing_token, last_fencing_owner FROM accounts")[0])
    return outcome, violations(ledger, outcome, final)


@pytest.mark.parametrize("name", parameters())
@pytest.mark.parametrize("guard", [ByGate, BySession], ids=["driver", "session"])
def test_behind_the_gate_tokens_never_go_down_and_no_accepted_write_is_lost(books, name, guard):
    outcome, found = hold(books(name), guard)

    assert found == []
    assert outcome.accepted
    assert outcome.refused


@pytest.mark.parametrize("name", parameters())
def test_under_the_trigger_tokens_never_go_down_and_no_accepted_write_is_lost(books, name):
    database = books(name)
    database.run(*FenceTrigger("accounts").create(database.name))

    outcome, found = hold(database, ByTrigger)

    assert found == []
    assert outcome.accepted
    assert outcome.refused


@pytest.mark.parametrize("name", parameters())
def test_the_checker_catches_an_update_that_nobody_compares(books, name):
    _, found = hold(books(name), ByCounting, rounds=3)

    assert any("the token went down" in each for each in found)


@pytest.mark.parametrize("name", parameters("postgresql", "mariadb"))
def test_the_checker_catches_changes_that_are_overwritten(books, name):
    _, found = hold(books(name), ByNothing, rounds=3)

    assert any("was written" in each for each in found)
