"""A table of Core is fenced by its declaration."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, update
from sqlalchemy.pool import StaticPool

from celery_fence.errors import ConfigError, ScopeMismatch, StaleToken, UnfencedWrite
from celery_fence.fencing.sqlalchemy import execute_fenced, fence_columns, fence_table, fenced_update
from celery_fence.fencing.writer import Writer


class TestATable:
    @pytest.fixture
    def jobs(self):
        return Table("jobs", MetaData(), Column("id", Integer, primary_key=True), *fence_columns())

    @pytest.fixture
    def engine(self, jobs):
        engine = create_engine("sqlite://", poolclass=StaticPool)
        jobs.metadata.create_all(engine)
        yield engine
        engine.dispose()

    def test_is_guarded_once_it_has_a_key(self, jobs, engine):
        with engine.begin() as connection:
            connection.execute(update(jobs).values(id=1))  # nobody has said that it is fenced

        assert fence_table(jobs, "job:<id>") is jobs
        with engine.begin() as connection:
            connection.execute(jobs.insert(), [{"id": 1}])
            with pytest.raises(UnfencedWrite):
                connection.execute(update(jobs).values(id=2))
            with pytest.raises(ScopeMismatch):
                execute_fenced(connection, fenced_update(jobs, Writer("job:2", 5, "me")).values(id=1))
            execute_fenced(connection, fenced_update(jobs, Writer("job:1", 5, "me")).values(id=1))

    def test_without_a_key_takes_the_writers(self, jobs, engine):
        fence_table(jobs)
        with engine.begin() as connection:
            connection.execute(jobs.insert(), [{"id": 1}])
            with pytest.raises(UnfencedWrite):
                connection.execute(update(jobs).values(id=2))
            execute_fenced(connection, fenced_update(jobs, Writer("any", 5, "me")).values(id=1))
            with pytest.raises(StaleToken):
                execute_fenced(connection, fenced_update(jobs, Writer("any", 4, "me")).values(id=1))

    def test_without_the_columns_or_with_a_wrong_key_is_an_error(self, jobs):
        with pytest.raises(ConfigError, match=r"fence_columns\(\)"):
            fence_table(Table("bare", MetaData(), Column("id", Integer, primary_key=True)), "job:<id>")
        with pytest.raises(ConfigError, match="<number>"):
            fence_table(jobs, "job:<number>")
