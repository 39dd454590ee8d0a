"""How classes and tables come to be fenced, and drivers that can't count."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    update,
)
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
from sqlalchemy.pool import StaticPool

from celery_fence.errors import ConfigError, ScopeMismatch, StaleToken, UnfencedWrite
from celery_fence.fencing.sqlalchemy import (
    FencedMixin,
    RowChanged,
    execute_fenced,
    fence,
    fence_columns,
    fence_table,
    fenced_update,
)
from celery_fence.fencing.writer import Writer


class Uncounting(sqlite3.Cursor):
    """A driver that can't tell how many rows it has written."""

    rowcount = -1


class UncountingConnection(sqlite3.Connection):
    def cursor(self, factory=Uncounting):
        return super().cursor(factory)


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


class TestATable:
    @pytest.fixture
    def jobs(self):
        return Table("jobs", MetaData(), Column("id", Integer, primary_key=True), *fence_columns())

    @pytest.fixture
    def engine(self, jobs):
        engine = create_engine("sqlite://", poolclass=StaticPool)
        jobs.metadata.create_all(engine)
        yield engine
        engine.dispose()

    def test_is_guarded_once_it_has_a_key(self, jobs, engine):
        with engine.begin() as connection:
            connection.execute(update(jobs).values(id=1))  # nobody has said that it is fenced

        assert fence_table(jobs, "job:<id>") is jobs
        with engine.begin() as connection:
            connection.execute(jobs.insert(), [{"id": 1}])
            with pytest.raises(UnfencedWrite):
                connection.execute(update(jobs).values(id=2))
            with pytest.raises(ScopeMismatch):
                execute_fenced(connection, fenced_update(jobs, Writer("job:2", 5, "me")).values(id=1))
            execute_fenced(connection, fenced_update(jobs, Writer("job:1", 5, "me")).values(id=1))

    def test_without_a_key_takes_the_writers(self, jobs, engine):
        fence_table(jobs)
        with engine.begin() as connection:
            connection.execute(jobs.insert(), [{"id": 1}])
            with pytest.raises(UnfencedWrite):
                connection.execute(update(jobs).values(id=2))
            execute_fenced(connection, fenced_update(jobs, Writer("any", 5, "me")).values(id=1))
            with pytest.raises(StaleToken):
                execute_fenced(connection, fenced_update(jobs, Writer("any", 4, "me")).values(id=1))

    def test_without_the_columns_or_with_a_wrong_key_is_an_error(self, jobs):
        with pytest.raises(ConfigError, match=r"fence_columns\(\)"):
            fence_table(Table("bare", MetaData(), Column("id", Integer, primary_key=True)), "job:<id>")
        with pytest.raises(ConfigError, match="<number>"):
            fence_table(jobs, "job:<number>")


class TestADriverThatCannotCount:
    @pytest.fixture
    def job(self):
        self.base, job = declared()
        return job

    @pytest.fixture
    def engine(self, job):
        engine = new_engine(self.base, connect_args={"factory": UncountingConnection})
        engine.dialect.supports_sane_rowcount = False
        with engine.begin() as connection:
            rows = "VALUES (1, 'new', 5, 'a'), (2, 'new', 0, NULL)"
            connection.exec_driver_sql(
                f"INSERT INTO jobs (id, state, last_fencing_token, last_fencing_owner) {rows}"
            )
        yield engine
        engine.dispose()

    def rows(self, engine):
        with engine.begin() as connection:
            return connection.exec_driver_sql("SELECT state, last_fencing_token FROM jobs ORDER BY id").all()

    @pytest.mark.parametrize("verb", ["update", "delete", "statement", "core"])
    def test_lets_no_stale_write_pass(self, engine, job, verb):
        with Session(engine) as session:
            fence(session, Writer("job:1", 4, "late"))
            with pytest.raises(StaleToken):
                self.write(session, job, verb, Writer("job:1", 4, "late"))
        assert self.rows(engine) == [("new", 5), ("new", 0)]

    @pytest.mark.parametrize("verb", ["update", "delete", "statement", "core"])
    def test_lets_a_newer_one_pass(self, engine, job, verb):
        with Session(engine) as session:
            fence(session, Writer("job:1", 6, "newer"))
            self.write(session, job, verb, Writer("job:1", 6, "newer"))
        assert self.rows(engine) in ([("written", 6), ("new", 0)], [("new", 0)])

    def test_overwrites_nothing_unread(self, engine, job):
        with Session(engine, expire_on_commit=False) as session:
            fence(session, Writer("job:1", 9, "newest"))
            row = session.get_one(job, 1)
            session.commit()
            with engine.begin() as connection:
                connection.exec_driver_sql("UPDATE jobs SET last_fencing_token = 7 WHERE id = 1")
            row.state = "unread"
            with pytest.raises(RowChanged):
                session.commit()

    def write(self, session, job, verb, writer):
        if verb == "update":
            session.get_one(job, 1).state = "written"
        elif verb == "delete":
            session.delete(session.get_one(job, 1))
        elif verb == "statement":
            session.execute(update(job).where(job.id == 1).values(state="written"))
        else:
            statement = fenced_update(job.__table__, writer).where(job.__table__.c.id == 1)
            execute_fenced(session, statement.values(state="written"))
        session.commit()


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


def test_a_fenced_class_leaves_nothing_on_its_table_that_a_migration_would_write_down():
    """Alembic writes a table's `info` into its migrations."""
    _, job = declared()

    assert job.__table__.info == {}
