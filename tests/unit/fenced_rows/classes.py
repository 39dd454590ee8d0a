"""A fenced class, the ways to write to it, and a database in memory."""

from __future__ import annotations

from sqlalchemy import String, create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from celery_fence.fencing.sqlalchemy import FencedMixin, fence
from celery_fence.fencing.writer import Writer


def new_engine(base, **options):
    engine = create_engine("sqlite://", poolclass=StaticPool, **options)
    base.metadata.create_all(engine)
    return engine


def plain(base):
    class Job(FencedMixin, base):
        __tablename__ = "jobs"
        __fence_key__ = "job:<id>"
        id: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[str] = mapped_column(String(20), default="new")

    return Job


def declared():
    class Base(DeclarativeBase):
        pass

    return Base, plain(Base)


def write(engine, job, token):
    with Session(engine) as session:
        fence(session, Writer("job:1", token, f"owner-{token}"))
        session.get_one(job, 1).state = f"by {token}"
        session.commit()


def write_by_statement(engine, job, token):
    with Session(engine) as session:
        fence(session, Writer("job:1", token, f"owner-{token}"))
        session.execute(update(job).where(job.id == 1).values(state=f"by {token}"))
        session.commit()


def state_of(engine, job):
    with Session(engine) as session:
        row = session.get_one(job, 1)
        return row.state, row.last_fencing_token
