"""The guards need neither Alembic nor greenlet, which SQLAlchemy 2.1 brings only with its extra `asyncio`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
sys.modules[sys.argv[1]] = None  # as if it weren't installed

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from celery_fence import StaleToken
from celery_fence.fencing.stamp import Stamp
from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.sqlalchemy import FencedMixin, fence, gates_table
from celery_fence.fencing.sqlalchemy.trigger import fence_trigger

class Base(DeclarativeBase): ...

class Payout(FencedMixin, Base):
    __tablename__ = "payouts"
    __fence_key__ = "payout:<id>"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")

gates_table(Base.metadata)
fence_trigger(Payout)
engine = create_engine("sqlite://")
Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add(Payout(id=7))
    session.commit()

for token in (20, 10):
    stamp = Stamp("payout:7", token, "somebody")
    with Session(engine) as session:
        fence(session, stamp)
        session.get_one(Payout, 7).state = f"by {token}"
        try:
            session.commit()
            pass_gate(session, "payout:7", stamp)
            session.commit()
        except StaleToken as stale:
            print(f"{stale.token} is older than {stale.seen}")
with Session(engine) as session:
    print(session.get_one(Payout, 7).state)
"""


@pytest.mark.parametrize("package", ["alembic", "greenlet"])
def test_rows_gates_and_triggers_are_fenced_without(package):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, package],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.splitlines() == ["10 is older than 20", "by 20"], done.stderr
