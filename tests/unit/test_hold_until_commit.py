"""`hold(..., until_commit=...)`: the lease outlives the block, until the transaction is over."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from celery_fence import ConfigError, Contended, current_lease, hold
from celery_fence.fencing.sqlalchemy.transactions import WAITING
from celery_fence.fencing.transactions import transactions_of
from celery_fence.locking.heartbeat import process_heartbeat


@pytest.fixture
def engine():
    engine = create_engine("sqlite://", poolclass=StaticPool)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine):
    with Session(engine) as session:
        yield session


def write(session):
    session.execute(text("SELECT 1"))


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_the_lease_is_kept_until_the_transaction_ends(app, leases, session, end):
    with hold("k", app=app, until_commit=session) as lease:
        write(session)

    assert leases.holder("k").token == lease.token
    assert current_lease() is None
    assert process_heartbeat().watching == 1
    lease.check()

    getattr(session, end)()
    assert leases.holder("k") is None
    assert process_heartbeat().watching == 0


def test_it_is_free_only_after_the_commit(app, leases, session):
    seen = []
    event.listen(session.get_bind(), "commit", lambda _: seen.append(leases.holder("k") is not None))
    with hold("k", app=app, until_commit=session):
        write(session)
    session.commit()

    assert seen == [True]
    assert leases.holder("k") is None


def test_a_block_that_fails_leaves_the_lease_to_the_rollback(app, leases, session):
    with suppress(ValueError), hold("k", app=app, until_commit=session):
        write(session)
        raise ValueError
    assert leases.holder("k")

    session.rollback()
    assert leases.holder("k") is None


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_savepoints_dont_count(app, leases, session, end):
    write(session)
    savepoint = session.begin_nested()
    with hold("k", app=app, until_commit=session):
        write(session)
    getattr(savepoint, end)()
    assert leases.holder("k")

    session.commit()
    assert leases.holder("k") is None


def test_a_block_without_a_transaction_releases_at_its_end(app, leases, session):
    with hold("k", app=app, until_commit=session):
        pass
    assert leases.holder("k") is None


def test_a_commit_inside_the_block_doesnt_release(app, leases, session):
    with hold("k", app=app, until_commit=session) as lease:
        write(session)
        session.commit()
        assert leases.holder("k").token == lease.token
    assert leases.holder("k") is None


def test_a_later_block_of_the_transaction_gets_the_same_lease(app, leases, session):
    with hold("k", app=app, until_commit=session) as first:
        write(session)
    with hold("k", app=app, until_commit=session) as second:
        assert second is first
        session.commit()
        assert leases.holder("k"), "the later block isn't over"
        write(session)
    assert leases.holder("k"), "its transaction isn't over"

    session.commit()
    assert leases.holder("k") is None


def test_a_later_block_of_the_next_transaction_gets_a_lease_of_its_own(app, session):
    with hold("k", app=app, until_commit=session) as first:
        write(session)
    session.commit()
    with hold("k", app=app, until_commit=session) as second:
        assert second.token > first.token


def test_a_lease_that_was_lost_meanwhile_is_asked_for_again(app, leases, session):
    with hold("k", app=app, until_commit=session) as first:
        write(session)
    leases.force_release("k")
    with pytest.raises(Exception, match="over"):
        first.verify()

    with hold("k", app=app, until_commit=session) as second:
        assert second.token > first.token
    session.commit()
    assert leases.holder("k") is None


def test_several_keys_of_one_transaction_are_released_together(app, leases, session):
    for key in ("a", "b"):
        with hold(key, app=app, until_commit=session):
            write(session)
    assert leases.holder("a")
    assert leases.holder("b")
    assert len(session.info[WAITING]) == 2, "each waits once"

    session.commit()
    assert leases.holder("a") is None
    assert leases.holder("b") is None


def test_a_block_inside_a_hold_leaves_the_release_to_the_outer_one(app, leases, session):
    with hold("k", app=app) as outer:
        with hold("k", app=app, until_commit=session) as inner:
            assert inner is outer
            write(session)
        session.commit()
        assert leases.holder("k")
    assert leases.holder("k") is None


def test_a_miss_leaves_nothing_to_the_transaction(app, leases, occupy, session):
    occupy("k")
    write(session)
    with pytest.raises(Contended), hold("k", app=app, until_commit=session):
        pytest.fail("entered")

    session.commit()
    assert leases.holder("k").owner == "somebody else"


def test_a_session_that_nobody_closes_takes_the_lease_along(app, leases, engine, wait_until):
    session = Session(engine)
    with hold("k", app=app, until_commit=session):
        write(session)
    assert leases.holder("k")

    del session
    gc.collect()
    wait_until(lambda: leases.holder("k") is None and process_heartbeat().watching == 0)


@pytest.fixture
def wait_until():
    def wait(condition, patience=10.0):
        waited = threading.Event()
        for _ in range(int(patience / 0.01)):
            if condition():
                return
            waited.wait(0.01)
        pytest.fail("it never came to be")

    return wait


def test_a_scoped_session(app, leases, engine):
    session = scoped_session(sessionmaker(engine))
    with hold("k", app=app, until_commit=session):
        write(session)
    assert leases.holder("k")

    session.remove()
    assert leases.holder("k") is None


def test_an_async_session(app, leases):
    async def run():
        engine = create_async_engine("sqlite+aiosqlite://", poolclass=StaticPool)
        async with AsyncSession(engine) as session:
            with hold("k", app=app, until_commit=session):
                await session.execute(text("SELECT 1"))
            before = leases.holder("k")
            await session.commit()
        await engine.dispose()
        return before

    assert asyncio.run(run())
    assert leases.holder("k") is None


@pytest.mark.parametrize(
    "thing", [object(), "session", create_engine("sqlite://").connect()], ids=lambda x: type(x).__name__
)
def test_what_doesnt_tell_of_its_commits_is_refused_before_the_lease_is_taken(app, leases, thing):
    with pytest.raises(ConfigError, match=type(thing).__name__), hold("k", app=app, until_commit=thing):
        pytest.fail("entered")
    assert leases.holder("k") is None


def test_an_end_that_is_interrupted_is_made_up_for(app, leases, session, monkeypatch):
    """As a soft time limit may strike anywhere: the lease is either kept for the commit, or given back."""
    strikes = [KeyboardInterrupt]
    at_end = transactions_of(session).__class__.at_end

    def struck(self, call):
        if strikes:
            raise strikes.pop()
        at_end(self, call)

    monkeypatch.setattr(transactions_of(session).__class__, "at_end", struck)
    with pytest.raises(KeyboardInterrupt), hold("k", app=app, until_commit=session):
        write(session)
    assert leases.holder("k")

    session.commit()
    assert leases.holder("k") is None
