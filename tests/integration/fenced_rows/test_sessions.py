"""Which lease a session writes with, and what it does with what another execution has left in it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from bench.leases import lease, under
from bench.payouts import Payout, Tenant
from sqlalchemy import update
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_fence import StaleToken
from celery_fence.errors import ConfigError, UnfencedWrite
from celery_fence.fencing.sqlalchemy import fence
from celery_fence.fencing.writer import Writer

SEVEN = "SELECT state, last_fencing_token, last_fencing_owner FROM payouts WHERE id = 7"


@pytest.fixture(autouse=True)
def written(raw):
    """Payout 7 as a run with token 5 has left it."""
    raw(
        "INSERT INTO payouts (id, state, amount, last_fencing_token, last_fencing_owner) "
        "VALUES (7, 'new', 0, 5, 'owner-5')"
    )


def test_what_a_former_execution_changed_is_not_written_with_the_token_of_the_next(engine, raw):
    shared = Session(engine)
    with under(lease("payout:7", 6)):
        shared.get_one(Payout, 7).state = "left behind"  # and it fails here, without a rollback
    with under(lease("payout:7", 7)):
        with pytest.raises(UnfencedWrite, match="began before the lease with token 7"):
            shared.commit()
        shared.rollback()
        shared.get_one(Payout, 7).state = "the next"
        shared.commit()
    shared.close()

    assert raw(SEVEN) == [("the next", 7, "owner-7")]


def test_what_a_former_execution_added_is_not_inserted_by_the_next(engine, raw):
    """Whatever it is, and whether the next one writes anything that is fenced."""
    shared = Session(engine)
    with under(lease("payout:7", 6)):
        shared.add(Tenant(id=1, name="left behind"))
    with under(lease("payout:8", 7)), pytest.raises(UnfencedWrite, match="began before"):
        shared.commit()
    shared.close()

    assert raw("SELECT * FROM tenants") == []


def test_a_statement_in_the_transaction_of_a_former_execution_is_refused(engine, raw):
    shared = Session(engine)
    with under(lease("payout:7", 6)):
        shared.get_one(Payout, 7)
    with under(lease("payout:7", 7)), pytest.raises(UnfencedWrite, match="began before"):
        shared.execute(update(Payout).where(Payout.id == 7).values(state="late"))
    shared.close()

    assert raw(SEVEN) == [("new", 5, "owner-5")]


def test_what_was_read_before_the_lease_was_taken_is_not_written_under_it(session, raw):
    """Else a change between the reading and the taking would be overwritten. Take the lease first, then begin."""
    payout = session.get_one(Payout, 7)
    with under(lease("payout:7", 6)):
        payout.state = "late"
        with pytest.raises(UnfencedWrite, match="Roll back"):
            session.commit()

    session.rollback()
    with under(lease("payout:7", 6)):
        payout.state = "right"
        session.commit()
    assert raw(SEVEN) == [("right", 6, "owner-6")]


def test_a_session_may_be_used_by_one_execution_after_another(session, raw):
    for token in (6, 7):
        with under(lease("payout:7", token)):
            session.get_one(Payout, 7).state = f"state {token}"
            session.commit()

    assert raw(SEVEN) == [("state 7", 7, "owner-7")]


def test_the_change_of_an_earlier_run_is_refused_where_it_is_committed_after_its_end(session, raw):
    with under(lease("payout:7", 6)):
        session.get_one(Payout, 7).state = "late"
    with pytest.raises(UnfencedWrite, match="no lease here"):
        session.commit()

    assert raw(SEVEN) == [("new", 5, "owner-5")]


def test_what_was_flushed_in_time_may_be_committed_after_the_block(session, raw):
    """As a wrapper around the task does that commits for it."""
    with under(lease("payout:7", 6)):
        session.get_one(Payout, 7).state = "flushed"
        session.flush()
    session.commit()

    assert raw(SEVEN) == [("flushed", 6, "owner-6")]


def test_objects_that_are_not_fenced_are_written_by_anybody(session, raw):
    session.add(Tenant(id=1, name="one"))
    session.commit()
    session.get_one(Tenant, 1).name = "two"
    session.commit()

    assert raw("SELECT name FROM tenants") == [("two",)]


def test_a_thread_writes_with_the_lease_that_it_is_handed(engine, raw):
    def work(held):
        with Session(engine) as session:
            fence(session, held)
            session.get_one(Payout, 7).state = f"by a thread, {held.token}"
            session.commit()

    with under(lease("payout:7", 6)) as held:
        thread = threading.Thread(target=work, args=[held])
        thread.start()
        thread.join()
    assert raw(SEVEN) == [("by a thread, 6", 6, "owner-6")]

    with ThreadPoolExecutor(1) as pool, pytest.raises(StaleToken):
        pool.submit(work, lease("payout:7", 5)).result()


def test_a_token_that_came_over_a_wire_will_do(session, raw):
    fence(session, Writer("payout:7", 6, "from afar"))
    session.get_one(Payout, 7).state = "remote"
    session.commit()

    assert raw(SEVEN) == [("remote", 6, "from afar")]


def test_changes_from_before_the_lease_was_handed_over_are_not_taken_along(session):
    session.get_one(Payout, 7).state = "early"
    with pytest.raises(UnfencedWrite, match="has changes"):
        fence(session, lease("payout:7", 6))


def test_a_session_goes_back_to_the_lease_it_finds(session, raw):
    fence(session, lease("payout:7", 9))
    fence(session)
    with under(lease("payout:7", 6)):
        session.get_one(Payout, 7).state = "found"
        session.commit()

    assert raw(SEVEN) == [("found", 6, "owner-6")]


def test_a_scoped_session_is_fenced_as_any_other(engine, raw):
    registry = scoped_session(sessionmaker(engine))
    with under(lease("payout:7", 4)):
        registry.get_one(Payout, 7).state = "stale"
        with pytest.raises(StaleToken):
            registry.commit()
        registry.remove()
    fence(registry, lease("payout:7", 6))
    registry.get_one(Payout, 7).state = "new token"
    registry.commit()
    registry.remove()

    assert raw(SEVEN) == [("new token", 6, "owner-6")]


def test_a_subclass_of_session_is_fenced_as_any_other(engine, raw):
    class Own(Session):
        pass

    with under(lease("payout:7", 4)), Own(engine) as session:
        session.get_one(Payout, 7).state = "stale"
        with pytest.raises(StaleToken):
            session.commit()

    assert raw(SEVEN) == [("new", 5, "owner-5")]


def test_a_session_on_a_connection_of_its_own_leaves_nothing_on_it(engine, raw):
    with engine.connect() as connection:
        with Session(connection) as session:
            fence(session, lease("payout:7", 6))
            session.get_one(Payout, 7).state = "written"
            session.commit()
        with pytest.raises(UnfencedWrite):
            connection.execute(update(Payout.__table__).values(state="unfenced"))

    assert raw(SEVEN) == [("written", 6, "owner-6")]


@pytest.mark.parametrize("given", ["enforced", "Shadow", ""])
def test_an_unknown_mode_is_an_error(session, given):
    with pytest.raises(ConfigError, match="is no mode"):
        fence(session, mode=given)


def test_what_is_no_session_is_an_error(engine):
    with pytest.raises(ConfigError, match="takes a session"):
        fence(engine)
    with pytest.raises(ConfigError, match="takes no lease"):
        fence(sessionmaker(engine), lease("payout:7", 6))
