"""
A holder that is frozen beyond its TTL and wakes up to write: ``python -m bench.paused``.

Its arguments are the URLs of the lease store and the database. It takes the lease, reads
its row, says "holding", and waits for a line. What became of each of its writes then,
and how many refusals were counted, is its last line, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from sqlalchemy import text
from sqlalchemy.orm import Session

from bench.databases import Database
from bench.payouts import Payout
from celery_fence import hold
from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.sqlalchemy import execute_fenced, fenced_update
from celery_fence.fencing.trigger import trigger_refusals
from celery_fence.fencing.writer import Writer
from celery_fence.task.install import runtime

TTL = 1.0
RAW = (
    "UPDATE payouts SET state = 'late', last_fencing_token = :token, last_fencing_owner = :owner WHERE id = 7"
)


def make_app(store: str) -> Celery:
    """An app whose leases live in *store*."""
    app = Celery("paused", broker="memory://", set_as_current=False)
    app.conf.update(fence_url=store, fence_ttl=TTL)
    return app


@contextmanager
def reading(engine: Any) -> Iterator[tuple[Session, Payout]]:
    """A session that has read payout 7 and keeps it."""
    with Session(engine, expire_on_commit=False) as session:
        payout = session.get_one(Payout, 7)
        session.commit()
        yield session, payout


def write_object(session: Session, payout: Payout) -> None:
    payout.state = "late"
    session.commit()


def write_core(engine: Any) -> None:
    with engine.begin() as connection:
        execute_fenced(connection, fenced_update(Payout.__table__).where(Payout.id == 7).values(state="late"))


def write_behind_the_gate(engine: Any) -> None:
    with engine.begin() as connection:
        pass_gate(connection, "payout:7")
        connection.execute(text("UPDATE payouts SET state = 'late' WHERE id = 7"))


def write_raw(engine: Any, writer: Writer) -> None:
    """What the trigger sees is a text; its error becomes ours."""
    with trigger_refusals(writer), engine.begin() as connection:
        connection.execute(text(RAW), {"token": writer.token, "owner": writer.owner})


def told(write: Callable[[], None]) -> str:
    """The kind of error that a write ends with."""
    try:
        write()
    except Exception as error:  # noqa: BLE001 - any is a finding
        return type(error).__name__
    return "written"


def main(store: str, kind: str, url: str) -> None:
    app, engine = make_app(store), Database(kind, url).engine()
    with hold("payout:7", app=app) as lease, reading(engine) as (session, payout):
        writer = Writer(lease.key, lease.token, lease.owner, source=app, lease=lease, emit=lease.emit)
        sys.stdout.write("holding\n")
        sys.stdout.flush()
        sys.stdin.readline()
        ends = {
            "object": told(lambda: write_object(session, payout)),
            "core": told(lambda: write_core(engine)),
            "gate": told(lambda: write_behind_the_gate(engine)),
            "trigger": told(lambda: write_raw(engine, writer)),
        }
        session.rollback()
    counted = sum(runtime(app).tally.counts.values())
    sys.stdout.write(json.dumps({"ends": ends, "counted": counted}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
