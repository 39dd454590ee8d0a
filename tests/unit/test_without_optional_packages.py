"""SQLAlchemy 2.1 comes without greenlet unless its extra `asyncio` is asked for: the guards need neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
sys.modules["greenlet"] = None  # as if it weren't installed

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from celery_fence import StaleToken
from celery_fence.fencing.stamp import Stamp
from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.sqlalchemy import FencedMixin, fence, gates_table

class Base(DeclarativeBase): ...

class Payout(FencedMixin, Base):
    __tablename__ = "payouts"
    __fence_key__ = "payout:<id>"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")

gates_table(Base.metadata)
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


def test_a_session_is_guarded_and_passes_gates_without_greenlet():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.splitlines() == ["10 is older than 20", "by 20"], done.stderr
