"""Mode shadow lets everything pass, tells what it would have refused, and never lowers a token; off does nothing."""

from __future__ import annotations

import pytest
from bench.leases import lease, under
from bench.payouts import Contract, Payout, Shadowed, accounts
from sqlalchemy import delete, update
from sqlalchemy.orm import Session, sessionmaker

from celery_fence.fencing.sqlalchemy import execute_fenced, fence, fenced_delete, fenced_insert, fenced_update
from celery_fence.locking.null_lease import NullLease

SEVEN = "SELECT state, last_fencing_token, last_fencing_owner FROM payouts WHERE id = 7"


@pytest.fixture(autouse=True)
def written(raw):
    """Rows as runs with token 5 have left them."""
    values = "VALUES (7, 'new', 5, 'owner-5')"
    raw(f"INSERT INTO shadowed (id, state, last_fencing_token, last_fencing_owner) {values}")
    raw(
        "INSERT INTO payouts (id, state, amount, last_fencing_token, last_fencing_owner) "
        "VALUES (7, 'new', 0, 5, 'owner-5')"
    )
    raw(
        "INSERT INTO accounts (id, value, last_fencing_token, last_fencing_owner) VALUES (1, 0, 5, 'owner-5')"
    )


def by_object(session):
    session.get_one(Payout, 7).state = "late"


def by_statement(session):
    session.execute(update(Payout).where(Payout.id == 7).values(state="late"))


def by_primary_key(session):
    session.execute(update(Payout), [{"id": 7, "state": "late"}])


each_write = pytest.mark.parametrize("write", [by_object, by_statement, by_primary_key])


@each_write
@pytest.mark.parametrize("shown", [(4, "owner-4"), (5, "somebody else")])
def test_a_stale_write_passes_is_told_and_keeps_the_newer_token(engine, raw, write, shown):
    held = lease("payout:7", *shown)
    with under(held, mode="shadow"), Session(engine) as session:
        write(session)
        session.commit()

    state, token, _ = raw(SEVEN)[0]
    assert (state, token) == ("late", 5)
    assert [(told.seen, told.refused, told.scope) for told in held.source] == [(5, False, "payout:7")]


@each_write
def test_a_write_with_a_newer_token_is_stamped_and_nothing_is_told(engine, raw, write):
    held = lease("payout:7", 6)
    with under(held, mode="shadow"), Session(engine) as session:
        write(session)
        session.commit()

    assert raw(SEVEN) == [("late", 6, "owner-6")]
    assert held.source == []


@each_write
def test_a_write_without_a_token_passes_and_is_told(engine, raw, write):
    told = []
    with under(NullLease("the task", told.append), mode="shadow"), Session(engine) as session:
        write(session)
        session.commit()

    assert raw(SEVEN) == [("late", 5, "owner-5")]
    assert [(event.token, event.refused, event.source) for event in told] == [(None, False, "the task")]


@each_write
def test_a_write_under_another_keys_lease_passes_and_is_told(engine, raw, write):
    held = lease("payout:8", 9)
    with under(held, mode="shadow"), Session(engine) as session:
        write(session)
        session.commit()

    assert raw(SEVEN) == [("late", 5, "owner-5")]
    assert [(event.key, event.scope, event.refused) for event in held.source] == [
        ("payout:8", "payout:7", False)
    ]


@each_write
def test_a_write_outside_of_any_run_passes(engine, raw, write):
    with Session(engine) as session:
        fence(session, mode="shadow")
        write(session)
        session.commit()

    assert raw(SEVEN) == [("late", 5, "owner-5")]


@each_write
def test_off_neither_compares_nor_stamps_nor_tells(engine, raw, write):
    held = lease("payout:7", 4)
    with under(held, mode="off"), Session(engine) as session:
        write(session)
        session.commit()

    assert raw(SEVEN) == [("late", 5, "owner-5")]
    assert held.source == []


def test_what_a_former_execution_left_passes_and_is_told(engine, raw):
    shared = Session(engine)
    with under(lease("payout:7", 6), mode="shadow"):
        shared.get_one(Payout, 7).state = "left behind"
    held = lease("payout:7", 7)
    with under(held, mode="shadow"):
        shared.commit()
    shared.close()

    assert raw(SEVEN)[0][0] == "left behind"
    assert held.source
    assert all("from before the lease" in told.what and not told.refused for told in held.source)


def test_a_class_may_be_in_shadow_while_others_are_not(engine, raw):
    with Session(engine) as session:
        session.get_one(Shadowed, 7).state = "unfenced"
        session.commit()
    held = lease("shadowed:7", 4)
    with under(held), Session(engine) as session:
        session.delete(session.get_one(Shadowed, 7))
        session.commit()

    assert raw("SELECT * FROM shadowed") == []
    assert [(told.what, told.refused) for told in held.source] == [("DELETE shadowed", False)]


def test_the_sessions_of_a_maker_have_its_mode(engine, raw):
    maker = sessionmaker(engine, info={"mine": 1})
    fence(maker, mode="shadow")
    with maker() as session:
        by_object(session)
        session.commit()
        assert session.info["mine"] == 1

    assert raw(SEVEN) == [("late", 5, "owner-5")]


@pytest.mark.parametrize(
    "make",
    [
        lambda held: fenced_update(accounts, held, mode="shadow").where(accounts.c.id == 1).values(value=9),
        lambda held: fenced_insert(accounts, held, mode="shadow").values(id=1, value=9),
    ],
    ids=["update", "upsert"],
)
def test_a_fenced_statement_in_shadow_passes_is_told_and_keeps_the_newer_token(engine, raw, make):
    held = lease("account:1", 4)
    with engine.begin() as connection:
        execute_fenced(connection, make(held))

    assert raw("SELECT value, last_fencing_token, last_fencing_owner FROM accounts") == [(9, 5, "owner-5")]
    assert [(told.seen, told.refused) for told in held.source] == [(5, False)]

    with engine.begin() as connection:
        execute_fenced(connection, make(lease("account:1", 6)))
    assert raw("SELECT last_fencing_token, last_fencing_owner FROM accounts") == [(6, "owner-6")]


def test_a_fenced_delete_in_shadow_passes_and_is_told(engine, raw):
    held = lease("account:1", 4)
    with engine.begin() as connection:
        execute_fenced(connection, fenced_delete(accounts, held, mode="shadow"))

    assert raw("SELECT * FROM accounts") == []
    assert [(told.seen, told.refused) for told in held.source] == [(5, False)]


def test_a_stale_delete_passes_and_is_told(engine, raw):
    held = lease("payout:7", 4)
    with under(held, mode="shadow"), Session(engine) as session:
        session.execute(delete(Payout).where(Payout.id == 7))
        session.commit()

    assert raw(SEVEN) == []
    assert [(told.what, told.refused) for told in held.source] == [("DELETE payouts", False)]


def test_what_cannot_be_fenced_passes_and_is_told(engine, raw):
    """Rows of several keys at once, and the table of a joined subclass alone."""
    raw("INSERT INTO payouts (id, state, amount) VALUES (8, 'new', 0)")
    raw("INSERT INTO documents (id, kind, title) VALUES (1, 'contract', 'old')")
    raw("INSERT INTO contracts (id, clause) VALUES (1, 'old')")
    held = lease("payout:7", 6)
    with under(held, mode="shadow"), engine.begin() as connection:
        connection.execute(update(Payout.__table__).values(state="all"))
        connection.execute(update(Contract.__table__).values(clause="new"))

    assert raw("SELECT DISTINCT state FROM payouts") == [("all",)]
    assert raw("SELECT clause FROM contracts") == [("new",)]
    assert [(told.token, told.refused) for told in held.source] == [(None, False), (None, False)]
