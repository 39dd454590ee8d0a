"""A database of each kind, with the tables of `bench.payouts`, empty for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from bench.databases import DATABASES, Database, new_database
from bench.payouts import Base, core
from sqlalchemy import Engine
from sqlalchemy.orm import Session


@pytest.fixture(scope="session", params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database of this session's own, with all tables."""
    with new_database(request.param, tmp_path_factory.mktemp("database")) as database:
        engine = database.engine()
        for metadata in (Base.metadata, core):
            metadata.create_all(engine)
        engine.dispose()
        yield database


@pytest.fixture(scope="session")
def shared_engine(database: Database) -> Iterator[Engine]:
    """One engine for the whole session."""
    engine = database.engine(pool_size=25)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """The engine; each test leaves the tables empty."""
    yield shared_engine
    tables = [*reversed(Base.metadata.sorted_tables), *reversed(core.sorted_tables)]
    with shared_engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f"DELETE FROM {table.name}")


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session of the test's own."""
    with Session(engine) as session:
        yield session


@pytest.fixture
def raw(engine: Engine) -> Callable[[str], list[tuple[object, ...]]]:
    """Write and read behind the guards' back, as another program does."""

    def run(sql: str) -> list[tuple[object, ...]]:
        with engine.begin() as connection:
            result = connection.exec_driver_sql(sql)
            return [tuple(row) for row in result] if result.returns_rows else []

    return run
