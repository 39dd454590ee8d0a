"""A driver that can't tell how many rows it has written lets no stale write through."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from celery_fence.errors import StaleToken
from celery_fence.fencing.sqlalchemy import RowChanged, execute_fenced, fence, fenced_update
from celery_fence.fencing.writer import Writer
from tests.unit.fenced_rows.classes import declared, new_engine


class Uncounting(sqlite3.Cursor):
    """A driver that can't tell how many rows it has written."""

    rowcount = -1


class UncountingConnection(sqlite3.Connection):
    def cursor(self, factory=Uncounting):
        return super().cursor(factory)


class TestADriverThatCannotCount:
    @pytest.fixture
    def job(self):
        self.base, job = declared()
        return job

    @pytest.fixture
    def engine(self, job):
        engine = new_engine(self.base, connect_args={"factory": UncountingConnection})
        engine.dialect.supports_sane_rowcount = False
        with engine.begin() as connection:
            rows = "VALUES (1, 'new', 5, 'a'), (2, 'new', 0, NULL)"
            connection.exec_driver_sql(
                f"INSERT INTO jobs (id, state, last_fencing_token, last_fencing_owner) {rows}"
            )
        yield engine
        engine.dispose()

    def rows(self, engine):
        with engine.begin() as connection:
            return connection.exec_driver_sql("SELECT state, last_fencing_token FROM jobs ORDER BY id").all()

    @pytest.mark.parametrize("verb", ["update", "delete", "statement", "core"])
    def test_lets_no_stale_write_pass(self, engine, job, verb):
        with Session(engine) as session:
            fence(session, Writer("job:1", 4, "late"))
            with pytest.raises(StaleToken):
                self.write(session, job, verb, Writer("job:1", 4, "late"))
        assert self.rows(engine) == [("new", 5), ("new", 0)]

    @pytest.mark.parametrize("verb", ["update", "delete", "statement", "core"])
    def test_lets_a_newer_one_pass(self, engine, job, verb):
        with Session(engine) as session:
            fence(session, Writer("job:1", 6, "newer"))
            self.write(session, job, verb, Writer("job:1", 6, "newer"))
        assert self.rows(engine) in ([("written", 6), ("new", 0)], [("new", 0)])

    def test_overwrites_nothing_unread(self, engine, job):
        with Session(engine, expire_on_commit=False) as session:
            fence(session, Writer("job:1", 9, "newest"))
            row = session.get_one(job, 1)
            session.commit()
            with engine.begin() as connection:
                connection.exec_driver_sql("UPDATE jobs SET last_fencing_token = 7 WHERE id = 1")
            row.state = "unread"
            with pytest.raises(RowChanged):
                session.commit()

    def write(self, session, job, verb, writer):
        if verb == "update":
            session.get_one(job, 1).state = "written"
        elif verb == "delete":
            session.delete(session.get_one(job, 1))
        elif verb == "statement":
            session.execute(update(job).where(job.id == 1).values(state="written"))
        else:
            statement = fenced_update(job.__table__, writer).where(job.__table__.c.id == 1)
            execute_fenced(session, statement.values(state="written"))
        session.commit()
