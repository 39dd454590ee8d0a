"""Databases of their own for the tests of each module, with the table of the records."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest
from bench.drivers import plain_database

from celery_fence.fencing.idempotency import create_records


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    """A database by the name of its server; one for each module."""
    made = {}
    with ExitStack() as stack:

        def get(name):
            if name not in made:
                made[name] = stack.enter_context(plain_database(name, tmp_path_factory.mktemp("database")))
                made[name].run("CREATE TABLE effects (work VARCHAR(80) NOT NULL)")
                with closing(made[name].connect()) as connection:
                    create_records(connection)
                    connection.commit()
            return made[name]

        yield get


@pytest.fixture
def connections():
    """Connections that are closed at the end of the test, whatever they are in the middle of."""
    with ExitStack() as stack:
        yield lambda database, *args, **given: stack.enter_context(closing(database.connect(*args, **given)))
