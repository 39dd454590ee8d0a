"""A class is fenced however it is mapped, and one that can't be says why."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, ForeignKey, Integer, String, create_engine, event
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    declarative_base,
    mapped_column,
    registry,
    relationship,
)

from celery_fence.errors import ConfigError, StaleToken
from celery_fence.fencing.sqlalchemy import FencedMixin, fence
from celery_fence.fencing.writer import Writer
from tests.unit.fenced_rows.classes import declared, new_engine, state_of, write, write_by_statement


def declared_the_other_way_round():
    class Base(DeclarativeBase):
        pass

    class Job(Base, FencedMixin):
        __tablename__ = "jobs"
        __fence_key__ = "job:<id>"
        id: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[str] = mapped_column(String(20), default="new")

    return Base, Job


def as_dataclass():
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class Job(FencedMixin, Base):
        __tablename__ = "jobs"
        __fence_key__ = "job:<id>"
        id: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[str] = mapped_column(String(20), default="new")

    return Base, Job


def by_function():
    Base = declarative_base()  # noqa: N806 - a class

    class Job(FencedMixin, Base):
        __tablename__ = "jobs"
        __fence_key__ = "job:<id>"
        id = Column(Integer, primary_key=True)
        state = Column(String(20), default="new")

    return Base, Job


def decorated():
    mapper = registry()

    @mapper.mapped
    class Job(FencedMixin):
        __tablename__ = "jobs"
        __fence_key__ = "job:<id>"
        id: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[str] = mapped_column(String(20), default="new")

    return mapper, Job


def through_an_abstract_base():
    class Base(DeclarativeBase):
        pass

    class FencedBase(FencedMixin, Base):
        __abstract__ = True
        id: Mapped[int] = mapped_column(primary_key=True)

    class Job(FencedBase):
        __tablename__ = "jobs"
        __fence_key__ = "job:<number>"
        id: Mapped[int] = mapped_column(primary_key=True)
        number: Mapped[int] = mapped_column(default=1)
        state: Mapped[str] = mapped_column(String(20), default="new")

    return Base, Job


def with_other_column_names():
    class Base(DeclarativeBase):
        pass

    class Job(FencedMixin, Base):
        __tablename__ = "jobs"
        __fence_key__ = "job:<id>"
        id: Mapped[int] = mapped_column("job_id", primary_key=True)
        state: Mapped[str] = mapped_column("job_state", String(20), default="new")

    return Base, Job


@pytest.mark.parametrize(
    "make",
    [
        declared,
        declared_the_other_way_round,
        as_dataclass,
        by_function,
        decorated,
        through_an_abstract_base,
        with_other_column_names,
    ],
)
def test_a_class_is_fenced_however_it_is_mapped(make):
    base, job = make()
    engine = new_engine(base)
    with Session(engine) as session:
        session.add(job(id=1))
        session.commit()

    write(engine, job, 5)
    for stale in (write, write_by_statement):
        with pytest.raises(StaleToken):
            stale(engine, job, 4)
    assert state_of(engine, job) == ("by 5", 5)
    write_by_statement(engine, job, 6)
    assert state_of(engine, job) == ("by 6", 6)
    engine.dispose()


def test_a_class_without_a_key_is_an_error_when_it_is_mapped():
    class Base(DeclarativeBase):
        pass

    with pytest.raises(ConfigError, match=r"needs __fence_key__.*'job:<id>'"):

        class Job(FencedMixin, Base):
            __tablename__ = "jobs"
            id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize(
    ("key", "why"),
    [("job:<number>", "<number>, which is none of its columns: id"), ("job:{id}", "write <id>")],
)
def test_a_key_that_cannot_be_right_is_an_error_when_it_is_mapped(key, why):
    class Base(DeclarativeBase):
        pass

    with pytest.raises(ConfigError, match=why):

        class Job(FencedMixin, Base):
            __tablename__ = "jobs"
            __fence_key__ = key
            id: Mapped[int] = mapped_column(primary_key=True)


def test_an_unknown_mode_of_a_class_is_an_error_when_it_is_mapped():
    class Base(DeclarativeBase):
        pass

    with pytest.raises(ConfigError, match="is no mode"):

        class Job(FencedMixin, Base):
            __tablename__ = "jobs"
            __fence_key__ = "job:<id>"
            __fence_mode__ = "shadows"
            id: Mapped[int] = mapped_column(primary_key=True)


def test_the_columns_have_defaults_in_the_database_so_that_they_can_be_added_to_a_filled_table():
    _, job = declared()
    token, owner = (job.__table__.c[name] for name in ("last_fencing_token", "last_fencing_owner"))

    assert (str(token.type), token.nullable, token.server_default.arg) == ("BIGINT", False, "0")
    assert (str(owner.type), owner.nullable) == ("VARCHAR(64)", True)


def test_rows_that_point_at_each_other_are_fenced_when_the_pointer_is_written_later():
    """`post_update` sends a second UPDATE for a row, beside the one that carries the stamp."""

    class Base(DeclarativeBase):
        pass

    class Node(FencedMixin, Base):
        __tablename__ = "nodes"
        __fence_key__ = "tree:<tree>"
        id: Mapped[int] = mapped_column(primary_key=True)
        tree: Mapped[int]
        friend_id: Mapped[int | None] = mapped_column(ForeignKey("nodes.id"))
        friend: Mapped[Node | None] = relationship(remote_side="Node.id", post_update=True)

    engine = new_engine(Base)
    with Session(engine) as session:
        one, two = Node(id=1, tree=1), Node(id=2, tree=1)
        one.friend, two.friend = two, one
        session.add_all([one, two])
        session.commit()
    with Session(engine) as session:
        fence(session, Writer("tree:1", 5, "me"))
        session.get_one(Node, 1).friend = None
        session.commit()
    with Session(engine) as session:
        fence(session, Writer("tree:1", 6, "newer"))
        node = session.get_one(Node, 2)
        node.friend = None
        session.commit()
        assert node.last_fencing_token == 6
    with Session(engine) as session:
        fence(session, Writer("tree:1", 5, "me"))
        session.get_one(Node, 2).friend = session.get_one(Node, 1)
        with pytest.raises(StaleToken):
            session.commit()
    engine.dispose()


def test_listening_twice_changes_nothing():
    declared()
    declared()
    engine = create_engine("sqlite://")
    sent = []
    base, job = declared()
    base.metadata.create_all(engine)
    event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    with Session(engine) as session:
        session.add(job(id=1))
        session.flush()

    assert len(sent) == 1
    engine.dispose()


def test_a_fenced_class_leaves_nothing_on_its_table_that_a_migration_would_write_down():
    """Alembic writes a table's `info` into its migrations."""
    _, job = declared()

    assert job.__table__.info == {}
