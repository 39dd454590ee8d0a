"""The fence trigger against raw SQL, on each database."""

from __future__ import annotations

import pytest
from bench.drivers import parameters
from celery import Celery
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from celery_fence import ConfigError, StaleToken, hold, signals
from celery_fence.errors import UnfencedWrite
from celery_fence.fencing.sqlalchemy.trigger import fence_trigger, tell_trigger_refusals
from celery_fence.fencing.trigger import FenceTrigger, fencing_columns, trigger_refusals
from celery_fence.fencing.trigger.definition import find
from celery_fence.fencing.writer import Writer

each_database = pytest.mark.parametrize("name", parameters())

TABLE = (
    "CREATE TABLE {table} (id BIGINT PRIMARY KEY, amount INT NOT NULL DEFAULT 0,"
    " last_fencing_token BIGINT NOT NULL DEFAULT 0, last_fencing_owner VARCHAR(64))"
)

SHOWN = "amount = 1, last_fencing_token = {token}, last_fencing_owner = '{owner}'"


class Payouts:
    """A table with one row that was last written with token 5 of "somebody", and what can be done to it."""

    def __init__(self, database, table="payouts"):
        self.database = database
        self.table = table
        self.quoted = f"`{table}`" if database.name == "mariadb" else f'"{table}"'
        database.run(
            TABLE.format(table=self.quoted),
            f"INSERT INTO {self.quoted} VALUES (1, 0, 5, 'somebody')",
        )

    def fence(self, **options):
        self.database.run(*FenceTrigger(self.table, **options).create(self.database.name))

    def update(self, change, **values):
        self.database.run(f"UPDATE {self.quoted} SET {change.format(**values)} WHERE id = 1")

    def delete(self):
        self.database.run(f"DELETE FROM {self.quoted} WHERE id = 1")

    @property
    def row(self):
        rows = self.database.run(
            f"SELECT amount, last_fencing_token, last_fencing_owner FROM {self.quoted} WHERE id = 1"
        )
        return tuple(rows[0]) if rows else None

    @property
    def sightings(self):
        return [
            tuple(row)
            for row in self.database.run(
                "SELECT table_name, what, token, seen FROM fence_sightings ORDER BY id"
            )
        ]


@pytest.fixture
def payouts(databases, name, request):
    made = Payouts(databases(name))
    yield made
    made.database.run(*FenceTrigger("payouts").drop(name), "DROP TABLE payouts")
    made.database.run("DROP TABLE IF EXISTS fence_sightings")


UNTOUCHED = (0, 5, "somebody")


@each_database
@pytest.mark.parametrize(("token", "owner"), [(6, "successor"), (5, "somebody")])
def test_a_newer_token_and_the_same_runs_own_go_through(payouts, token, owner):
    payouts.fence()

    for _ in range(2):
        payouts.update(SHOWN, token=token, owner=owner)

    assert payouts.row == (1, token, owner)


@each_database
@pytest.mark.parametrize(("token", "owner"), [(4, "somebody"), (4, "frozen"), (5, "another"), (-7, "x")])
def test_a_stale_token_is_refused_and_nothing_changed(payouts, name, token, owner):
    payouts.fence()

    with pytest.raises(StaleToken) as refused, trigger_refusals(Writer("payout:1", token, owner)):
        payouts.update(SHOWN, token=token, owner=owner)

    assert payouts.row == UNTOUCHED
    assert refused.value.seen == (None if name == "sqlite" else 5)
    assert refused.value.token == token


@each_database
def test_the_owner_alone_cant_be_changed(payouts):
    payouts.fence(unfenced="allow")

    with pytest.raises(StaleToken), trigger_refusals():
        payouts.update("last_fencing_owner = 'another'")

    assert payouts.row == UNTOUCHED


@each_database
def test_one_stale_row_among_many_refuses_the_whole_statement(payouts):
    payouts.database.run(
        "INSERT INTO payouts VALUES (2, 0, 1, 'x')", "INSERT INTO payouts VALUES (3, 0, 9, 'x')"
    )
    payouts.fence()

    with pytest.raises(StaleToken), trigger_refusals():
        payouts.database.run(
            "UPDATE payouts SET amount = 1, last_fencing_token = 6, last_fencing_owner = 'y' WHERE id > 1"
        )

    assert payouts.database.run("SELECT amount, last_fencing_token FROM payouts WHERE id = 2")[0] == (0, 1)


@pytest.mark.parametrize("name", parameters("postgresql", "sqlite"))
def test_a_writer_that_shows_no_token_is_refused(payouts):
    payouts.fence()

    with pytest.raises(UnfencedWrite, match="last_fencing_token"), trigger_refusals():
        payouts.update("amount = 1")

    assert payouts.row == UNTOUCHED


@pytest.mark.parametrize("name", parameters("postgresql", "sqlite"))
def test_a_row_that_nobody_has_fenced_yet_is_no_exception(payouts):
    payouts.database.run("UPDATE payouts SET last_fencing_token = 0, last_fencing_owner = NULL")
    payouts.fence()

    with pytest.raises(UnfencedWrite), trigger_refusals():
        payouts.update("amount = 1")
    payouts.update(SHOWN, token=1, owner="first")

    assert payouts.row == (1, 1, "first")


@pytest.mark.needs("mariadb")
@pytest.mark.parametrize("name", ["mariadb"])
def test_mariadb_takes_a_writer_that_shows_no_token_for_the_run_that_wrote_last(payouts):
    """As it is documented: nothing tells the two apart there."""
    payouts.fence()

    payouts.update("amount = 1")

    assert payouts.row == (1, 5, "somebody")


@each_database
def test_a_writer_that_shows_no_token_may_be_allowed(payouts):
    payouts.fence(unfenced="allow")

    payouts.update("amount = 1")
    with pytest.raises(StaleToken), trigger_refusals():
        payouts.update(SHOWN, token=4, owner="frozen")

    assert payouts.row == (1, 5, "somebody")


@each_database
def test_somebody_who_knows_what_he_does_sets_the_token_to_itself(payouts):
    payouts.fence()

    payouts.update("amount = 1, last_fencing_token = last_fencing_token")

    assert payouts.row == (1, 5, "somebody")


@each_database
def test_deletes_go_through_unless_they_are_to_be_refused(payouts):
    payouts.fence(deletes="refuse")
    with pytest.raises(UnfencedWrite), trigger_refusals():
        payouts.delete()
    assert payouts.row == UNTOUCHED

    payouts.fence()
    payouts.delete()
    assert payouts.row is None


@each_database
def test_in_shadow_mode_all_goes_through_and_is_written_down(payouts, name):
    payouts.fence(mode="shadow", deletes="refuse")

    payouts.update(SHOWN, token=4, owner="frozen")
    payouts.update(SHOWN, token=6, owner="successor")
    payouts.update("amount = 2")
    assert payouts.row == (2, 6, "successor")
    payouts.delete()

    unfenced = [] if name == "mariadb" else [("payouts", "unfenced", None, 6)]
    assert payouts.sightings == [
        ("payouts", "stale", 4, 5),
        *unfenced,
        ("payouts", "delete", None, 6),
    ]


@each_database
def test_what_is_refused_leaves_nothing_behind(payouts):
    payouts.fence()

    payouts.update(SHOWN, token=6, owner="successor")
    with pytest.raises(StaleToken), trigger_refusals():
        payouts.update(SHOWN, token=5, owner="somebody")

    assert payouts.sightings == []


@each_database
def test_making_it_again_replaces_it_and_dropping_it_ends_it(payouts, name):
    found = find(name).replace(":schema", "NULL")
    for options in ({}, {"mode": "shadow", "deletes": "refuse"}, {"unfenced": "allow"}):
        payouts.fence(**options)
        assert list(FenceTrigger.found(payouts.database.run(found))) == [FenceTrigger("payouts", **options)]

    for _ in range(2):
        payouts.database.run(*FenceTrigger("payouts").drop(name))
    assert list(FenceTrigger.found(payouts.database.run(found))) == []
    payouts.update("amount = 1, last_fencing_token = 1")
    assert payouts.row == (1, 1, "somebody")


@each_database
@pytest.mark.parametrize("table", ["Order", 'it\'s "quoted"', "x" * 60, "tab le"])
def test_a_table_may_have_any_name(databases, name, table):
    if name == "mariadb" or '"' not in table:
        payouts = Payouts(databases(name), table)
        payouts.fence()

        with pytest.raises(StaleToken), trigger_refusals():
            payouts.update(SHOWN, token=4, owner="frozen")
        payouts.update(SHOWN, token=6, owner="successor")
        assert payouts.row == (1, 6, "successor")
        payouts.database.run(*FenceTrigger(table).drop(name), f"DROP TABLE {payouts.quoted}")


@pytest.mark.needs("postgres")
@pytest.mark.parametrize("name", ["postgresql"])
def test_an_upsert_in_postgresql_is_compared_too(payouts):
    payouts.fence()
    upsert = (
        "INSERT INTO payouts VALUES (1, 7, {token}, 'x') ON CONFLICT (id) DO UPDATE SET"
        " amount = excluded.amount, last_fencing_token = excluded.last_fencing_token,"
        " last_fencing_owner = excluded.last_fencing_owner"
    )

    with pytest.raises(StaleToken), trigger_refusals():
        payouts.database.run(upsert.format(token=4))
    payouts.database.run(upsert.format(token=6))

    assert payouts.row == (7, 6, "x")


@each_database
def test_another_error_in_the_block_comes_out_as_it_is(payouts):
    payouts.fence()

    with pytest.raises(Exception, match=r"(?i)constraint|null") as raised, trigger_refusals():
        payouts.update("amount = NULL, last_fencing_token = 6")

    assert not isinstance(raised.value, StaleToken | UnfencedWrite)


@each_database
def test_a_refusal_is_told_under_the_lease_it_was_written_with(payouts):
    app = Celery("telling", set_as_current=False)
    app.conf.fence_url = f"memory://{payouts.database.place}"
    payouts.fence()
    told = []

    def hears(sender, key, token, what, **_):
        told.append((key, token, what))

    signals.stale_write_refused.connect(hears)
    payouts.update("last_fencing_token = 9000000000000000, last_fencing_owner = 'successor'")
    with hold("payout:1", app=app) as lease, pytest.raises(StaleToken), trigger_refusals():
        payouts.update(
            "last_fencing_token = {last_fencing_token}, last_fencing_owner = '{last_fencing_owner}'",
            **fencing_columns(),
        )
    signals.stale_write_refused.disconnect(hears)

    assert told == [("payout:1", lease.token, "UPDATE payouts")]


# With SQLAlchemy


@pytest.fixture
def metadata():
    return MetaData()


@pytest.fixture
def table(metadata):
    return Table(
        "bookings",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("amount", Integer),
        Column("last_fencing_token", BigInteger, nullable=False, server_default="0"),
        Column("last_fencing_owner", String(64)),
    )


@pytest.fixture
def engine(databases, name, metadata):
    engine = create_engine(databases(name).url())
    yield engine
    metadata.drop_all(engine)
    engine.dispose()


@each_database
def test_create_all_makes_it_with_the_table_and_drop_all_leaves_nothing(
    engine, metadata, table, name, databases
):
    fence_trigger(table)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(table.insert().values(id=1, last_fencing_token=5, last_fencing_owner="somebody"))

    with Session(engine) as session, pytest.raises(StaleToken), trigger_refusals():
        session.execute(text("UPDATE bookings SET amount = 1, last_fencing_token = 4"))

    metadata.drop_all(engine)
    assert not {"bookings", "fence_sightings"} & set(inspect(engine).get_table_names())
    if name == "postgresql":
        assert databases(name).run("SELECT count(*) FROM pg_proc WHERE proname = 'fence_bookings'") == [(0,)]


@each_database
def test_without_asking_for_it_there_is_none(engine, metadata, table):
    metadata.create_all(engine)

    assert inspect(engine).get_table_names().count("fence_sightings") == 0
    with engine.begin() as connection:
        connection.execute(table.insert().values(id=1, last_fencing_token=5))
        connection.execute(text("UPDATE bookings SET last_fencing_token = 4"))


@each_database
def test_asking_again_changes_how_it_is_made(engine, metadata, table):
    fence_trigger(table)
    fence_trigger(table, mode="shadow")
    metadata.create_all(engine)

    with engine.begin() as connection:
        connection.execute(table.insert().values(id=1, last_fencing_token=5))
        connection.execute(text("UPDATE bookings SET last_fencing_token = 4"))
        assert connection.execute(text("SELECT count(*) FROM fence_sightings")).scalar() == 1


@each_database
def test_an_engine_tells_refusals_by_itself(engine, metadata, table):
    fence_trigger(table)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(table.insert().values(id=1, last_fencing_token=5))
    tell_trigger_refusals(engine)

    with engine.connect() as connection:
        with pytest.raises(StaleToken) as refused:
            connection.execute(text("UPDATE bookings SET last_fencing_token = 4"))
        assert refused.value.__cause__ is not None
        connection.rollback()
        with pytest.raises(DBAPIError):
            connection.execute(text("UPDATE nowhere SET amount = 1"))


def test_a_table_without_the_columns_is_refused_by_name(metadata):
    plain = Table("plain", metadata, Column("id", Integer, primary_key=True))

    with pytest.raises(ConfigError, match="last_fencing_token and last_fencing_owner"):
        fence_trigger(plain)


@pytest.mark.parametrize("options", [{"mode": "off"}, {"unfenced": "count"}, {"deletes": True}])
def test_an_option_that_there_isnt_is_refused_by_name(options):
    [name] = options
    with pytest.raises(ConfigError, match=name):
        FenceTrigger("payouts", **options)


def test_a_database_without_a_trigger_is_refused_by_name():
    with pytest.raises(ConfigError, match="oracle"):
        FenceTrigger("payouts").create("oracle")
