"""A holder is frozen beyond its TTL, a successor writes, and the holder wakes up: on each database, in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.databases import new_database
from bench.paused import make_app
from bench.payouts import Base, Payout
from sqlalchemy.orm import Session

from celery_fence import hold
from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.sqlalchemy.gate import gates_table
from celery_fence.fencing.trigger import FenceTrigger
from celery_fence.testing.servers import embedded_server

HERE = Path(__file__).parents[1]
WAYS = ["object", "core", "gate", "trigger"]


@pytest.fixture
def guarded(database, tmp_path):
    """A database of the test's own, with payout 7, the table of the gates, and a trigger."""
    with new_database(database.kind, tmp_path) as own:
        engine = own.engine()
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            gates_table(Base.metadata).create(connection)
            connection.exec_driver_sql("INSERT INTO payouts (id, state, amount) VALUES (7, 'new', 0)")
            for statement in FenceTrigger("payouts").create(engine.dialect.name):
                connection.exec_driver_sql(statement)
        yield own, engine
        Base.metadata.remove(gates_table(Base.metadata))
        engine.dispose()


@pytest.fixture
def holder(guarded):
    """A process that holds the lease on payout 7, and the store it is in."""
    own, _ = guarded
    with embedded_server() as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.paused", server.url, own.kind, own.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])},
        )
        try:
            assert process.stdout.readline() == "holding\n"
            yield process, server.url
        finally:
            process.kill()
            process.wait()


def test_a_holder_that_was_frozen_beyond_its_ttl_writes_nothing(guarded, holder):
    _, engine = guarded
    process, store = holder
    process.send_signal(signal.SIGSTOP)
    with hold("payout:7", wait=60, app=make_app(store)) as lease, Session(engine) as session:
        pass_gate(session, "payout:7")
        session.get_one(Payout, 7).state = "the successor's"
        session.commit()
    process.send_signal(signal.SIGCONT)

    answer, _ = process.communicate("wake up\n", timeout=60)

    assert json.loads(answer) == {"ends": dict.fromkeys(WAYS, "StaleToken"), "counted": len(WAYS)}
    with engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT state, amount, last_fencing_token FROM payouts").one()
    assert tuple(row) == ("the successor's", 0, lease.token)
