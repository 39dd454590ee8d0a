"""The statements of Core that carry the fence in themselves."""

from __future__ import annotations

import pytest
from bench.leases import lease, under
from bench.payouts import Payout, accounts
from sqlalchemy import Column, Integer, MetaData, Table, bindparam, select, update
from sqlalchemy.orm import Session

from celery_fence import StaleToken
from celery_fence.errors import ConfigError, ScopeMismatch, UnfencedWrite
from celery_fence.fencing.sqlalchemy import execute_fenced, fenced_delete, fenced_insert, fenced_update
from celery_fence.locking.null_lease import NullLease

ONE = "SELECT value, last_fencing_token, last_fencing_owner FROM accounts WHERE id = 1"


@pytest.fixture(autouse=True)
def written(raw):
    """Account 1 as a run with token 5 has left it."""
    raw(
        "INSERT INTO accounts (id, value, last_fencing_token, last_fencing_owner) VALUES (1, 0, 5, 'owner-5')"
    )


def update_one(held=None, **given):
    return fenced_update(accounts, held, **given).where(accounts.c.id == 1).values(value=9)


def delete_one(held=None, **given):
    return fenced_delete(accounts, held, **given).where(accounts.c.id == 1)


def insert_one(held=None, **given):
    return fenced_insert(accounts, held, **given).values(id=1, value=9)


MAKERS = [update_one, delete_one, insert_one]
each_statement = pytest.mark.parametrize("make", MAKERS)


def execute(engine, statement, parameters=None):
    with engine.begin() as connection:
        return execute_fenced(connection, statement, parameters)


@each_statement
@pytest.mark.parametrize("shown", [(4, "owner-4"), (5, "somebody else")])
def test_a_stale_statement_is_refused(engine, raw, make, shown):
    held = lease("account:1", *shown)
    with pytest.raises(StaleToken) as refusal:
        execute(engine, make(held))

    assert raw(ONE) == [(0, 5, "owner-5")]
    assert (refusal.value.scope, refusal.value.token, refusal.value.seen) == ("account:1", held.token, 5)
    assert [(told.seen, told.seen_owner, told.refused) for told in held.source] == [(5, "owner-5", True)]


@each_statement
@pytest.mark.parametrize("token", [5, 6])
def test_a_newer_token_and_the_same_run_write_and_stamp(engine, raw, make, token):
    execute(engine, make(lease("account:1", token)))

    assert raw(ONE) == ([] if make is delete_one else [(9, token, f"owner-{token}")])


@each_statement
def test_the_lease_that_the_code_is_under_is_taken(engine, raw, make):
    with under(lease("account:1", 4)), pytest.raises(StaleToken):
        execute(engine, make())
    with under(lease("account:1", 6), lease("other:1", 2)):
        execute(engine, make(scope="account:1"))

    assert raw(ONE) in ([(9, 6, "owner-6")], [])


@each_statement
def test_a_lease_on_another_key_than_the_scope_is_an_error(make):
    with pytest.raises(ScopeMismatch, match="'account:1' with the lease on 'account:2'"):
        make(lease("account:2", 9), scope="account:1")


@each_statement
def test_without_a_token_no_statement_is_made(make):
    with pytest.raises(UnfencedWrite):
        make()
    with pytest.raises(UnfencedWrite):
        make(NullLease())


@each_statement
def test_executed_in_any_other_way_it_is_refused_all_the_same(engine, raw, make):
    with Session(engine) as session, pytest.raises(StaleToken):
        session.execute(make(lease("account:1", 4)))
    with engine.begin() as connection, pytest.raises(StaleToken):
        connection.execute(make(lease("account:1", 4)))

    assert raw(ONE) == [(0, 5, "owner-5")]


@pytest.mark.parametrize("make", [update_one, delete_one])
def test_the_condition_stands_in_the_statement_itself(make):
    assert "accounts.last_fencing_token < " in str(make(lease("account:1", 4)))


def test_an_unfenced_statement_is_not_executed_as_a_fenced_one(engine, raw):
    for statement in (update(accounts).values(value=9), select(accounts)):
        with pytest.raises(UnfencedWrite, match="takes a statement from"):
            execute(engine, statement)

    assert raw(ONE) == [(0, 5, "owner-5")]


def test_a_table_without_the_columns_is_an_error():
    bare = Table("bare", MetaData(), Column("id", Integer, primary_key=True))
    with pytest.raises(ConfigError, match=r"\*fence_columns\(\)"):
        fenced_update(bare, lease("account:1", 4))


def test_one_stale_row_of_several_takes_back_all(engine, raw):
    raw("INSERT INTO accounts (id, value, last_fencing_token) VALUES (2, 0, 9), (3, 0, 0)")
    with pytest.raises(StaleToken) as refusal:
        execute(engine, fenced_update(accounts, lease("accounts", 6)).values(value=9))

    assert refusal.value.seen == 9
    assert raw("SELECT DISTINCT value FROM accounts") == [(0,)]


def test_a_statement_that_matches_nothing_changes_nothing(engine, raw):
    statement = fenced_update(accounts, lease("accounts", 6)).where(accounts.c.value > 5).values(value=9)

    assert execute(engine, statement).rowcount == 0
    assert raw(ONE) == [(0, 5, "owner-5")]


def test_an_upsert_inserts_what_is_not_there(engine, raw):
    statement = fenced_insert(accounts, lease("account:2", 6)).values(id=2, value=9)
    for _ in range(2):
        execute(engine, statement)

    assert raw("SELECT value, last_fencing_token, last_fencing_owner FROM accounts WHERE id = 2") == [
        (9, 6, "owner-6")
    ]


def test_an_upsert_changes_the_columns_it_gives_and_no_others(engine, raw):
    raw("UPDATE accounts SET note = 'keep'")
    execute(engine, insert_one(lease("account:1", 6)))

    assert raw("SELECT value, note FROM accounts") == [(9, "keep")]


def test_an_upsert_of_many_rows_is_refused_if_one_is_stale(engine, raw):
    raw("INSERT INTO accounts (id, value, last_fencing_token) VALUES (2, 0, 9)")
    rows = [{"id": number, "value": 9} for number in (1, 2, 3)]
    with pytest.raises(StaleToken) as refusal:
        execute(engine, fenced_insert(accounts, lease("accounts", 6)), rows)
    assert refusal.value.seen == 9
    assert raw("SELECT id, value FROM accounts ORDER BY id") == [(1, 0), (2, 0)]

    execute(engine, fenced_insert(accounts, lease("accounts", 9, "newest")), [rows[0], rows[2]])
    assert raw("SELECT id, value FROM accounts ORDER BY id") == [(1, 9), (2, 0), (3, 9)]


def test_rows_in_the_upsert_itself_are_refused(engine, raw):
    rows = [{"id": 1, "value": 9}, {"id": 2, "value": 9}]
    with pytest.raises(UnfencedWrite, match="second argument"):
        execute(engine, fenced_insert(accounts, lease("accounts", 6)).values(rows))

    assert raw(ONE) == [(0, 5, "owner-5")]


def test_an_upsert_of_a_row_of_another_key_is_an_error(engine, raw):
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one'), (2, 'two')")
    raw("INSERT INTO invoices (id, tenant_id, total, last_fencing_token) VALUES (1, 1, 0, 3)")
    from bench.payouts import Invoice

    with pytest.raises(ScopeMismatch):
        execute(engine, fenced_insert(Invoice, lease("tenant:2", 9)).values(id=1, tenant_id=1, total=9))
    with pytest.raises(ScopeMismatch, match="meets a row of 'tenant:1'"):
        execute(engine, fenced_insert(Invoice, lease("tenant:2", 9)).values(id=1, tenant_id=2, total=9))
    assert raw("SELECT tenant_id, total, last_fencing_token FROM invoices") == [(1, 0, 3)]

    execute(engine, fenced_insert(Invoice, lease("tenant:1", 9)).values(id=1, tenant_id=1, total=9))
    assert raw("SELECT tenant_id, total, last_fencing_token FROM invoices") == [(1, 9, 9)]


def test_for_a_mapped_class_the_rows_are_of_its_key(engine, raw):
    raw(
        "INSERT INTO payouts (id, state, amount, last_fencing_token, last_fencing_owner) "
        "VALUES (7, 'new', 0, 5, 'owner-5'), (8, 'new', 0, 0, NULL)"
    )
    for make in (
        lambda held: fenced_update(Payout, held).where(Payout.id == 7).values(state="late"),
        lambda held: fenced_insert(Payout, held).values(id=7, state="late", amount=0),
    ):
        with pytest.raises(StaleToken):
            execute(engine, make(lease("payout:7", 4)))
        with pytest.raises(ScopeMismatch):
            execute(engine, make(lease("payout:8", 9)))
        assert raw("SELECT state FROM payouts WHERE id = 7") == [("new",)]
    with Session(engine) as session:
        execute_fenced(
            session, fenced_update(Payout, lease("payout:7", 6)).where(Payout.id == 7), {"state": "late"}
        )
        session.commit()

    assert raw("SELECT state, last_fencing_token FROM payouts ORDER BY id") == [("late", 6), ("new", 0)]


def test_a_parameter_in_the_where_is_understood(engine, raw):
    statement = fenced_update(accounts, lease("account:1", 4)).where(accounts.c.id == bindparam("which"))
    with pytest.raises(StaleToken):
        execute(engine, statement.values(value=9), {"which": 1})

    assert raw(ONE) == [(0, 5, "owner-5")]
