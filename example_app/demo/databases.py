"""A ledger of its own for each night, wiped afterwards: an SQLite file, or a schema in your PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateSchema, DropSchema

from example_app.demo.processes import DemoError

VARIABLE = "FENCE_DEMO_DATABASE_URL"


@contextmanager
def scratch_database(url: str | None, directory: Path) -> Iterator[str]:
    """The URL of an empty database: a file in *directory*, or a new schema where *url* is PostgreSQL's."""
    if url is None:
        yield f"sqlite:///{directory / 'ledger.db'}"
        return
    schema = f"fence_demo_{uuid.uuid4().hex[:12]}"
    engine = _with_schema(url, schema)
    try:
        inside = engine.url.update_query_dict({"options": f"-csearch_path={schema}"})
        yield inside.render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.execute(DropSchema(schema, cascade=True))
        engine.dispose()


def _with_schema(url: str, schema: str) -> Engine:
    try:
        engine = create_engine(url)
        if engine.dialect.name != "postgresql":
            raise DemoError(f"{VARIABLE} must be a postgresql URL; unset it to use SQLite")
        with engine.begin() as connection:
            connection.execute(CreateSchema(schema))
    except (SQLAlchemyError, ImportError) as error:
        reason = f"{error} (unset {VARIABLE} to use SQLite)"
        raise DemoError(f"no schema can be made in the database of {VARIABLE}: {reason}") from error
    return engine
