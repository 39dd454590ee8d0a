"""A ledger of its own for each night, wiped afterwards: an SQLite file, or a schema in your PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateSchema, DropSchema

from example_app.demo.processes import DemoError


@contextmanager
def scratch_database(url: str | None, directory: Path) -> Iterator[str]:
    """The URL of an empty database: a file in *directory*, or a new schema where *url* is PostgreSQL's."""
    if url is None or make_url(url).get_backend_name() == "sqlite":
        yield f"sqlite:///{directory / 'ledger.db'}"
        return
    if make_url(url).get_backend_name() != "postgresql":
        raise DemoError("FENCE_DEMO_DATABASE_URL must be a postgresql URL; unset it to use SQLite")
    schema = f"fence_demo_{uuid.uuid4().hex[:12]}"
    engine = create_engine(url)
    _create(engine, schema)
    try:
        inside = make_url(url).update_query_dict({"options": f"-csearch_path={schema}"})
        yield inside.render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.execute(DropSchema(schema, cascade=True))
        engine.dispose()


def _create(engine: Engine, schema: str) -> None:
    try:
        with engine.begin() as connection:
            connection.execute(CreateSchema(schema))
    except SQLAlchemyError as error:
        raise DemoError(
            f"no schema can be made in the database of FENCE_DEMO_DATABASE_URL: {error}"
        ) from error
