"""What the database would do to fenced rows by itself is refused."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, create_engine, delete, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.pool import StaticPool

from celery_fence.errors import ScopeMismatch, UnfencedWrite
from celery_fence.fencing.sqlalchemy import FencedMixin, fence
from celery_fence.fencing.writer import Writer


class TestWhatTheDatabaseDoesByItself:
    """A foreign key with ON DELETE CASCADE lets the database delete fenced rows, which no guard sees."""

    @pytest.fixture(params=[True, False], ids=["passive", "active"])
    def world(self, request):
        class Base(DeclarativeBase):
            pass

        class Owner(Base):
            __tablename__ = "owners"
            id: Mapped[int] = mapped_column(primary_key=True)
            pets: Mapped[list[Pet]] = relationship(
                cascade="all, delete-orphan", passive_deletes=request.param
            )

        class Pet(FencedMixin, Base):
            __tablename__ = "pets"
            __fence_key__ = "pet:<id>"
            id: Mapped[int] = mapped_column(primary_key=True)
            owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
            mother_id: Mapped[int | None] = mapped_column(ForeignKey("pets.id", ondelete="CASCADE"))

        engine = create_engine("sqlite://", poolclass=StaticPool)
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            session.add_all(
                [Owner(id=1), Owner(id=2), Pet(id=1, owner_id=1), Pet(id=2, owner_id=1, mother_id=1)]
            )
            session.commit()
        yield engine, Owner, Pet, request.param
        engine.dispose()

    def pets(self, engine):
        with engine.begin() as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM pets").scalar()

    def test_is_refused_while_there_are_such_rows(self, world):
        engine, owner, _, _ = world
        for statement in (delete(owner).where(owner.id == 1), delete(owner), delete(owner.__table__)):
            with Session(engine) as session:
                fence(session, Writer("pet:1", 9, "me"))
                with pytest.raises(UnfencedWrite, match="ON DELETE CASCADE"):
                    session.execute(statement)
        assert self.pets(engine) == 2

    def test_is_no_obstacle_where_there_are_none(self, world):
        engine, owner, _, _ = world
        with Session(engine) as session:
            session.delete(session.get_one(owner, 2))
            session.execute(delete(owner).where(owner.id == 2))
            session.commit()

    def test_is_refused_where_the_unit_of_work_leaves_it_to_the_database(self, world):
        engine, owner, _, passive = world
        with Session(engine) as session:
            fence(session, Writer("pet:1", 9, "me"))
            with pytest.raises(UnfencedWrite if passive else ScopeMismatch):
                self.drop(session, owner)
        assert self.pets(engine) == 2

    def test_passes_in_shadow(self, world):
        engine, owner, _, _ = world
        with Session(engine) as session:
            fence(session, mode="shadow")
            self.drop(session, owner)
        assert self.pets(engine) == 0

    def test_counts_rows_of_the_same_table_but_those_that_go_with_it(self, world):
        engine, _, pet, _ = world
        with Session(engine) as session:
            fence(session, Writer("pet:1", 9, "me"))
            with pytest.raises(UnfencedWrite, match="changes pets"):
                session.execute(delete(pet).where(pet.id == 1))
            session.rollback()
            with pytest.raises(UnfencedWrite, match="changes pets"):
                self.drop(session, pet)
        assert self.pets(engine) == 2

    def drop(self, session, cls):
        session.delete(session.get_one(cls, 1))
        session.commit()
