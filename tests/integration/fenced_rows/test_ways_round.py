"""Ways round the guards that somebody found, each closed: by a key, by a lambda, by a schema, by what wasn't read."""

from __future__ import annotations

import uuid

import pytest
from bench.databases import told_to_commit
from bench.leases import lease, under
from bench.payouts import Invoice, Payout, Shadowed
from sqlalchemy import ForeignKey, String, bindparam, create_engine, delete, lambda_stmt, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, load_only, mapped_column

from celery_fence import StaleToken
from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.sqlalchemy import (
    FencedMixin,
    execute_fenced,
    fence_trigger,
    fenced_insert,
    fenced_update,
)

ROW = "SELECT state, amount, last_fencing_token FROM payouts"


class Other(DeclarativeBase):
    """Tables that only this module has."""


class Agency(Other):
    __tablename__ = "agencies"

    id: Mapped[int] = mapped_column(primary_key=True)


class Desk(Other):
    """Not fenced; between its agency and its drawers."""

    __tablename__ = "desks"

    id: Mapped[int] = mapped_column(primary_key=True)
    agency_id: Mapped[int] = mapped_column(ForeignKey("agencies.id", ondelete="CASCADE"))


class Drawer(FencedMixin, Other):
    __tablename__ = "drawers"
    __fence_key__ = "drawer:<id>"

    id: Mapped[int] = mapped_column(primary_key=True)
    desk_id: Mapped[int | None] = mapped_column(ForeignKey("desks.id", ondelete="SET NULL"))
    fence_token: Mapped[int] = mapped_column(default=0)
    """A name of the user's own, which no parameter of the guards may have."""


class Tag(FencedMixin, Other):
    """Two columns make a row the same as another."""

    __tablename__ = "tags"
    __fence_key__ = "tag:x"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(30), unique=True)


class Watched(FencedMixin, Other):
    """Fenced by its guard, and by the database itself."""

    __tablename__ = "watched"
    __fence_key__ = "watched:<id>"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(30), default="new")


fence_trigger(Watched)


@pytest.fixture
def others(engine):
    """The tables of this module, for one test."""
    Other.metadata.create_all(engine)
    yield engine
    Other.metadata.drop_all(engine)


@pytest.fixture
def invoice(raw):
    """An invoice of tenant 1."""
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one'), (2, 'two')")
    raw("INSERT INTO invoices (id, tenant_id, total) VALUES (1, 1, 0)")


@pytest.fixture
def written(raw):
    """Payout 7 as a run with token 5 has left it."""
    raw(
        "INSERT INTO payouts (id, state, amount, last_fencing_token, last_fencing_owner) "
        "VALUES (7, 'new', 10, 5, 'owner-5')"
    )


def by_statement(session):
    session.execute(update(Invoice).where(Invoice.id == 1).values(tenant_id=2))


def by_expression(session):
    session.execute(update(Invoice).where(Invoice.id == 1).values(tenant_id=Invoice.tenant_id + 1))


def by_parameter(session):
    statement = update(Invoice.__table__).where(Invoice.__table__.c.id == bindparam("which"))
    session.connection().execute(statement, {"which": 1, "tenant_id": 2})


def by_primary_key(session):
    session.execute(update(Invoice), [{"id": 1, "tenant_id": 2}])


def by_fenced_statement(session):
    execute_fenced(session, fenced_update(Invoice).where(Invoice.id == 1).values(tenant_id=2))


def by_replacement(session):
    """The unit of work makes one UPDATE of this."""
    session.delete(session.get_one(Invoice, 1))
    session.add(Invoice(id=1, tenant_id=2))


@pytest.mark.parametrize(
    "move",
    [by_statement, by_expression, by_parameter, by_primary_key, by_fenced_statement, by_replacement],
    ids=lambda move: move.__name__,
)
def test_no_statement_moves_a_row_to_another_key(engine, raw, invoice, move):
    def write():
        with Session(engine) as session, session.begin():
            move(session)

    with under(lease("tenant:1", 6)), pytest.raises(UnfencedWrite, match="move"):
        write()

    assert raw("SELECT tenant_id, last_fencing_token FROM invoices") == [(1, 0)]


def test_a_row_whose_key_was_overwritten_unread_does_not_move_to_the_key_of_the_lease(engine, raw, invoice):
    with under(lease("tenant:2", 6)), Session(engine) as session:
        found = session.get_one(Invoice, 1)
        session.commit()  # forgets what was read
        found.tenant_id = 2
        with pytest.raises(UnfencedWrite, match="from 'tenant:1' to 'tenant:2'"):
            session.commit()

    assert raw("SELECT tenant_id, last_fencing_token FROM invoices") == [(1, 0)]


def test_a_row_without_a_tenant_does_not_move_to_one(engine, raw, invoice):
    raw("UPDATE invoices SET tenant_id = NULL")
    with under(lease("tenant:2", 6)), Session(engine) as session:
        session.get_one(Invoice, 1).tenant_id = 2
        with pytest.raises(UnfencedWrite, match="move"):
            session.commit()

    assert raw("SELECT tenant_id FROM invoices") == [(None,)]


@pytest.mark.parametrize(
    "write",
    [
        lambda session: session.execute(update(Invoice).where(Invoice.id == 1).values(tenant_id=1, total=3)),
        lambda session: session.execute(update(Invoice), [{"id": 1, "tenant_id": 1, "total": 3}]),
    ],
    ids=["by statement", "by primary key"],
)
def test_a_statement_that_names_the_key_a_row_has_writes_it(engine, raw, invoice, write):
    with under(lease("tenant:1", 6)), Session(engine) as session:
        write(session)
        session.commit()

    assert raw("SELECT tenant_id, total, last_fencing_token FROM invoices") == [(1, 3, 6)]


def by_flush(session):
    session.get_one(Invoice, 1).tenant_id = 2


@pytest.mark.parametrize("move", [by_flush, by_statement, by_primary_key], ids=lambda move: move.__name__)
def test_in_shadow_a_move_passes_and_is_told(engine, raw, invoice, move):
    held = lease("tenant:1", 6)
    with under(held, mode="shadow"), Session(engine) as session:
        move(session)
        session.commit()

    assert raw("SELECT tenant_id FROM invoices") == [(2,)]
    assert [told.refused for told in held.source] == [False]


@pytest.mark.parametrize("where", ["session", "connection"])
def test_a_lambda_is_no_way_round(engine, raw, written, where):
    def write():
        if where == "session":
            with Session(engine) as session, session.begin():
                session.execute(
                    lambda_stmt(lambda: update(Payout).where(Payout.id == 7).values(state="late"))
                )
        else:
            table = Payout.__table__
            with engine.begin() as connection:
                connection.execute(
                    lambda_stmt(lambda: update(table).where(table.c.id == 7).values(state="late"))
                )

    with under(lease("payout:7", 4)), pytest.raises(StaleToken):
        write()
    assert raw(ROW) == [("new", 10, 5)]

    with under(lease("payout:7", 6)):
        write()
    assert raw(ROW) == [("late", 10, 6)]


def test_what_was_read_without_its_token_is_not_written(engine, raw, written):
    """An older holder may have committed since; nobody could tell."""
    with under(lease("payout:7", 6)), Session(engine) as session:
        payout = session.scalars(select(Payout).options(load_only(Payout.amount))).one()
        raw("UPDATE payouts SET amount = 100")
        payout.amount += 1
        with pytest.raises(UnfencedWrite, match="load_only"):
            session.commit()
    assert raw(ROW) == [("new", 100, 5)]

    with under(lease("payout:7", 6)), Session(engine) as session:
        asked = select(Payout).options(load_only(Payout.amount, Payout.last_fencing_token))
        session.scalars(asked).one().amount += 1
        session.commit()
    assert raw(ROW) == [("new", 101, 6)]


def test_what_was_not_read_at_all_is_written_with_the_leases_token(engine, raw, written):
    with under(lease("payout:7", 6)), Session(engine) as session:
        payout = session.get_one(Payout, 7)
        session.commit()
        payout.state = "sent"
        session.commit()

    assert raw(ROW) == [("sent", 10, 6)]


def test_the_tables_of_another_schema_are_fenced_there(database, engine, raw):
    if database.kind != "postgres":
        pytest.skip("also on CI: one database with several schemas will do")
    schema = f"tenant_{uuid.uuid4().hex[:8]}"
    raw(f"CREATE SCHEMA {schema}")
    raw(f"CREATE TABLE {schema}.payouts (LIKE public.payouts INCLUDING ALL)")
    raw(
        f"INSERT INTO {schema}.payouts (id, state, amount, last_fencing_token, last_fencing_owner) "
        "VALUES (7, 'new', 10, 5, 'owner-5')"
    )

    def write(state):
        options = {"schema_translate_map": {None: schema}}
        with Session(engine) as session, session.begin():
            session.execute(
                update(Payout).where(Payout.id == 7).values(state=state), execution_options=options
            )

    with under(lease("payout:7", 4)), pytest.raises(StaleToken):
        write("late")
    with under(lease("payout:7", 6)):
        write("sent")
    assert raw(f"SELECT state, last_fencing_token FROM {schema}.payouts") == [("sent", 6)]
    raw(f"DROP SCHEMA {schema} CASCADE")


def test_a_statement_writes_rows_that_came_after_the_snapshot_of_its_transaction(engine, raw, written):
    if engine.dialect.name == "sqlite":
        pytest.skip("also on CI: SQLite has one writer at a time")
    with under(lease("payout:7", 6)), Session(engine) as session:
        session.execute(select(Payout.id)).all()
        raw("UPDATE payouts SET state = 'ready'")
        session.execute(update(Payout).where(Payout.state == "ready").values(state="done"))
        session.commit()

    assert raw(ROW) == [("done", 10, 6)]


def test_what_the_database_deletes_by_way_of_rows_that_are_not_fenced_is_refused(others, raw):
    raw("INSERT INTO agencies (id) VALUES (1), (2)")
    raw("INSERT INTO desks (id, agency_id) VALUES (1, 1), (2, 2)")
    raw("INSERT INTO drawers (id, desk_id, fence_token) VALUES (1, 1, 0)")
    with Session(others) as session, pytest.raises(UnfencedWrite, match="ON DELETE SET NULL"):
        session.execute(delete(Agency).where(Agency.id == 1))
    with Session(others) as session:
        session.execute(delete(Agency).where(Agency.id == 2))  # nothing hangs on it
        session.commit()

    assert raw("SELECT id FROM agencies") == [(1,)]
    assert raw("SELECT desk_id FROM drawers") == [(1,)]


def test_a_column_may_have_any_name(others, raw):
    raw("INSERT INTO drawers (id, fence_token) VALUES (1, 0)")
    with under(lease("drawer:1", 6)), Session(others) as session:
        session.get_one(Drawer, 1).fence_token = 3
        session.commit()

    assert raw("SELECT fence_token, last_fencing_token FROM drawers") == [(3, 6)]


@pytest.mark.parametrize("leases", [(), (lease("watched:1", 6),)], ids=["no lease", "a lease"])
def test_a_new_row_shows_its_token_to_the_trigger_when_it_is_changed_again(others, raw, leases):
    with under(*leases), Session(others) as session:
        watched = Watched(id=1)
        session.add(watched)
        session.flush()
        watched.state = "changed"
        session.commit()

    assert raw("SELECT state, last_fencing_token FROM watched") == [("changed", 6 if leases else 0)]


@pytest.mark.parametrize("token", [5, 9], ids=["older", "newer"])
def test_an_upsert_that_meets_a_row_by_another_unique_column_is_not_taken_for_done(others, raw, token):
    raw(f"INSERT INTO tags (id, name, last_fencing_token) VALUES (1, 'red', {token})")
    for row in ({"id": 2, "name": "red"}, {"id": 3, "name": "blue"}):
        with under(lease("tag:x", 6)), Session(others) as session:
            try:
                execute_fenced(session, fenced_insert(Tag).values(row))
            except (IntegrityError, UnfencedWrite):
                session.rollback()
                assert row["name"] == "red"
            session.commit()

    assert raw("SELECT id, last_fencing_token FROM tags ORDER BY id") == [(1, token), (3, 6)]


def test_ordered_values_are_refused_with_a_word_what_to_write_instead(engine, raw, written):
    statement = update(Payout).where(Payout.id == 7).ordered_values((Payout.state, "x"), (Payout.amount, 1))
    told = pytest.raises(UnfencedWrite, match=r"Use values\(\)")
    with under(lease("payout:7", 6)), Session(engine) as session, told:
        session.execute(statement)

    assert raw(ROW) == [("new", 10, 5)]


def test_in_shadow_what_no_guard_can_fence_passes(database, engine, raw):
    raw("INSERT INTO shadowed (id, state) VALUES (7, 'new'), (8, 'new')")
    table = Shadowed.__table__
    with engine.begin() as connection:
        connection.execute(
            update(table).where(table.c.id == bindparam("which")).values(state="many"),
            [{"which": 7}, {"which": 8}],
        )
    assert raw("SELECT DISTINCT state FROM shadowed") == [("many",)]

    with engine.begin() as connection:
        connection.execute(update(table).ordered_values((table.c.state, "ordered")))
    assert raw("SELECT DISTINCT state FROM shadowed") == [("ordered",)]

    if database.kind == "postgres":  # only PostgreSQL writes in a WITH
        written = update(table).values(state="with").returning(table.c.id).cte()
        with engine.begin() as connection:
            connection.execute(select(written)).all()
        assert raw("SELECT DISTINCT state FROM shadowed") == [("with",)]


@pytest.mark.parametrize("leases", [(), (lease("payout:7", 7),)], ids=["no lease", "another run"])
def test_what_a_flush_may_write_is_no_licence_for_a_bulk_update_behind_it(engine, raw, written, leases):
    with Session(engine) as session:
        with under(lease("payout:7", 6)):
            session.get_one(Payout, 7).state = "sent"
            session.flush()
        with under(*leases), pytest.raises(UnfencedWrite):
            session.bulk_update_mappings(Payout, [{"id": 7, "state": "late"}])

    assert raw(ROW) == [("new", 10, 5)]


def test_a_driver_that_commits_by_itself_is_refused(database, engine, raw, written):
    if database.kind == "sqlite":
        pytest.skip("also on CI: its driver has another word for it")
    careless = told_to_commit(create_engine(database.url))
    with under(lease("payout:7", 6)), Session(careless) as session:
        session.get_one(Payout, 7).state = "late"
        with pytest.raises(UnfencedWrite, match="autocommit"):
            session.commit()
    careless.dispose()

    assert raw(ROW) == [("new", 10, 5)]
