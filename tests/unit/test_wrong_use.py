"""What somebody reads who uses a guard for the first time, and not as it was meant."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from urllib.parse import quote

import pytest
import redis
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from celery_fence import FencedTask, current_lease, hold
from celery_fence.errors import ConfigError, ScopeMismatch, StaleToken, UnfencedWrite
from celery_fence.fencing.gate import create_gates, pass_gate
from celery_fence.fencing.http import WsgiTokenGate
from celery_fence.fencing.sqlalchemy import (
    FencedMixin,
    RowChanged,
    SqlMarks,
    fence,
    fence_columns,
    fence_table,
    fenced_update,
)
from celery_fence.fencing.streams import FencedStream, MemoryMarks, RedisMarks, Stamp, TokenGate
from celery_fence.fencing.trigger import fencing_columns
from celery_fence.fencing.trigger.refusal import Refusal
from celery_fence.fencing.writer import Writer
from celery_fence.locking import current
from celery_fence.locking.null_lease import NullLease


class Base(DeclarativeBase):
    pass


class Payout(FencedMixin, Base):
    __tablename__ = "payouts"
    __fence_key__ = "payout:<id>"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(20), default="new")
    amount: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def engine():
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Payout(id=7))
        session.commit()
    yield engine
    engine.dispose()


@pytest.fixture
def connection():
    with closing(sqlite3.connect(":memory:")) as connection:
        create_gates(connection)
        connection.commit()
        yield connection


@pytest.fixture
def stream():
    return FencedStream(redis.Redis(port=1), "payouts")


def scopes(connection):
    return [scope for (scope,) in connection.execute("SELECT scope FROM fence_gates")]


def row(engine):
    with engine.connect() as connection:
        return tuple(connection.exec_driver_sql("SELECT state, last_fencing_token FROM payouts").one())


class TestAGateWithoutAScope:
    def test_is_that_of_the_tasks_key_whatever_is_escaped_in_it(self, app, connection):
        @app.task(base=FencedTask, lock_key="acct:<address>")
        def pay(address):
            pass_gate(connection)

        pay("a@b.c")

        assert scopes(connection) == ["acct:a%40b.c"]

    def test_is_that_of_the_innermost_block(self, app, connection):
        with hold("outer", app=app), hold("inner", app=app):
            pass_gate(connection)

        assert scopes(connection) == ["inner"]

    def test_is_that_of_the_lease_it_is_handed(self, app, connection):
        with hold("here", app=app):
            pass_gate(connection, lease=Stamp("elsewhere", 5))

        assert scopes(connection) == ["elsewhere"]

    def test_holds_up_a_straggler(self, connection):
        pass_gate(connection, lease=Writer("k", 6, "successor"))
        with pytest.raises(StaleToken):
            pass_gate(connection, lease=Writer("k", 5, "straggler"))

    def test_lets_a_run_without_a_token_pass_in_shadow_and_tells_of_it(self, connection):
        told = []
        with current.entered(current.Frame(NullLease(emit=told.append), None)):
            pass_gate(connection, mode="shadow")

        assert [(event.scope, event.token) for event in told] == [("fence_gates", None)]
        assert scopes(connection) == []


class TestAKeyBeforeEscaping:
    def test_is_called_that_at_the_gate(self, app, connection):
        with hold("acct:<address>", {"address": "a@b.c"}, app=app), hold("other", app=app):
            with pytest.raises(ScopeMismatch, match=r"key before escaping.*leave the scope out") as mismatch:
                pass_gate(connection, "acct:a@b.c")
            with pytest.raises(ScopeMismatch, match="Take the lease on 'acct:x'"):
                pass_gate(connection, "acct:x")

        assert mismatch.value.key == "acct:a%40b.c"

    def test_is_called_that_by_a_stream(self, app, stream):
        with (
            hold("acct:<address>", {"address": "a@b.c"}, app=app),
            pytest.raises(ScopeMismatch, match=r"key before escaping.*lease\.key"),
        ):
            stream.append("acct:a@b.c", {"type": "paid"})

    def test_is_called_that_by_a_service(self):
        gate = TokenGate(MemoryMarks())
        service = WsgiTokenGate(lambda *_: [b""], gate, scope_of=lambda _, path: f"acct:{path[1:]}")
        headers = {"HTTP_X_FENCING_TOKEN": "5", "HTTP_X_FENCING_SCOPE": "acct:a%2540b.c"}

        body = b"".join(service({"REQUEST_METHOD": "PUT", "PATH_INFO": "/a@b.c", **headers}, lambda *_: None))

        assert b"key before escaping" in body

    def test_is_escaped_as_the_page_on_http_says(self, app):
        value = "a@b/ü: c~%-._"
        with hold("acct:<address>", {"address": value}, app=app) as lease:
            assert lease.key == "acct:" + quote(value, safe="").replace("~", "%7E")


GUARDS = {
    "fence": lambda given, _: fence(Session(), given),
    "pass_gate": lambda given, _: pass_gate(object(), "k", given),
    "pass_gate without a scope": lambda given, _: pass_gate(object(), lease=given),
    "fenced_update": lambda given, _: fenced_update(Payout, given),
    "fencing_columns": lambda given, _: fencing_columns(given),
    "append": lambda given, stream: stream.append("k", {"type": "paid"}, given),
    "Stamp.of": lambda given, _: Stamp.of(given),
    "admits": lambda given, _: TokenGate(MemoryMarks()).admits(given),
}


@pytest.mark.parametrize("use", GUARDS.values(), ids=GUARDS)
class TestWhatIsNoLease:
    def test_a_token_is_refused_by_name(self, use, stream):
        with pytest.raises(
            ConfigError, match=r"takes a lease \(self.lease, current_lease\(\)\).*token \(17\)"
        ):
            use(17, stream)

    def test_anything_else_is_shown(self, use, stream):
        with pytest.raises(ConfigError, match=r"takes a lease .*not 'payout:7'"):
            use("payout:7", stream)


def test_a_gate_for_messages_doesnt_take_no_stamp_for_the_lease_here(app):
    with hold("k", app=app), pytest.raises(ConfigError, match="not None"):
        TokenGate(MemoryMarks()).admits(Stamp.read({}))


def test_a_gate_for_messages_takes_a_lease(make_lease):
    gate, straggler, successor = TokenGate(MemoryMarks()), make_lease(key="k"), make_lease(key="k")

    assert [gate.admits(each) for each in (straggler, successor, straggler)] == [True, True, False]


def test_a_gate_for_messages_in_shadow_tells_of_a_run_without_a_token(caplog):
    told = []
    gate = TokenGate(MemoryMarks(), mode="shadow", emit=told.append)

    assert gate.admits(NullLease())
    assert [event.token for event in told] == [None]


class TestWithoutALease:
    def test_the_row_and_what_to_do_with_a_session_is_named(self, engine):
        with Session(engine) as session:
            session.get_one(Payout, 7).state = "paid"
            with pytest.raises(
                UnfencedWrite, match=r"UPDATE payouts for 'payout:7'.*fence\(session, lease\)"
            ):
                session.commit()

    def test_a_connection_is_sent_to_a_fenced_statement(self, engine):
        with (
            engine.begin() as connection,
            pytest.raises(UnfencedWrite, match=r"UPDATE payouts.*fenced_update\(table, lease\)"),
        ):
            connection.execute(update(Payout).where(Payout.id == 7).values(state="paid"))

    @pytest.mark.parametrize(
        ("use", "named"),
        [
            (lambda _: pass_gate(object(), "tenant:7"), r"pass_gate\(\) for 'tenant:7'.*lease=lease"),
            (lambda _: pass_gate(object()), r"pass_gate\(\) needs.*lease=lease"),
            (lambda _: fenced_update(Payout), r"fenced_update\(payouts, lease\)"),
            (lambda _: fencing_columns(), r"fencing_columns\(lease\)"),
            (lambda stream: stream.append("k", {"a": 1}), r"append\(\) to payouts for 'k'.*lease=lease"),
            (lambda _: Stamp.of(), r"Stamp\.of\(lease\)"),
        ],
    )
    def test_the_guard_and_what_it_takes_is_named(self, use, named, stream):
        with pytest.raises(UnfencedWrite, match=f"(?s){named}") as refused:
            use(stream)

        assert "no lease here" in str(refused.value)


class TestAStampByHand:
    @pytest.mark.parametrize("columns", [("token",), ("owner",), ("token", "owner")])
    def test_of_the_own_lease_is_harmless(self, app, engine, columns):
        with hold("payout:7", app=app) as lease, Session(engine) as session:
            payout = session.get_one(Payout, 7)
            payout.state = "paid"
            for name in columns:
                setattr(payout, f"last_fencing_{name}", getattr(lease, name))
            session.commit()

        assert row(engine) == ("paid", lease.token)

    def test_is_harmless_on_what_is_read_anew_after_a_commit(self, app, engine):
        with hold("payout:7", app=app), Session(engine) as session:
            payout = session.get_one(Payout, 7)
            session.commit()
            payout.last_fencing_token, payout.state = current_lease().token, "paid"
            session.commit()

        assert row(engine)[0] == "paid"

    def test_is_harmless_for_a_delete(self, app, engine):
        with hold("payout:7", app=app) as lease, Session(engine) as session:
            payout = session.get_one(Payout, 7)
            payout.last_fencing_token = lease.token
            session.delete(payout)
            session.commit()
        with Session(engine) as session:
            assert session.get(Payout, 7) is None

    def test_hides_no_change_since_the_row_was_read(self, app, engine):
        with hold("payout:7", app=app) as lease, Session(engine) as session:
            payout = session.get_one(Payout, 7)
            payout.amount += 1
            payout.last_fencing_token = lease.token
            session.connection().exec_driver_sql(
                "UPDATE payouts SET amount = 100, last_fencing_token = 3, last_fencing_owner = 'older'"
            )
            with pytest.raises(RowChanged):
                session.commit()

    def test_isnt_what_a_merge_is_taken_for(self, app, engine):
        """It brings the token of what was read earlier, and the row has changed since."""
        with Session(engine) as session:
            read = session.get_one(Payout, 7)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE payouts SET amount = 100, last_fencing_token = 3, last_fencing_owner = 'older'"
            )
        with hold("payout:7", app=app), Session(engine) as session:
            read.amount += 1
            session.merge(read)
            with pytest.raises(RowChanged):
                session.commit()

    @pytest.mark.parametrize("wrong", [2**60, "five"])
    def test_that_the_row_cant_have_had_is_an_error_that_says_who_sets_it(self, app, engine, wrong):
        with hold("payout:7", app=app), Session(engine) as session:
            payout = session.get_one(Payout, 7)
            payout.last_fencing_token = wrong
            with pytest.raises(UnfencedWrite, match="The mixin sets this column"):
                session.commit()

        assert row(engine) == ("new", 0)


def missing(error):
    return " ".join(getattr(error, "__notes__", []))


class TestAMissingTable:
    def test_is_said_how_to_make_with_a_driver(self, app):
        with (
            closing(sqlite3.connect(":memory:")) as connection,
            hold("k", app=app),
            pytest.raises(sqlite3.OperationalError) as error,
        ):
            pass_gate(connection)

        assert "create_gates(connection)" in missing(error.value)

    def test_is_said_how_to_make_with_sqlalchemy(self, app, engine):
        with hold("k", app=app), Session(engine) as session, pytest.raises(OperationalError) as error:
            pass_gate(session)

        assert "gates_table(metadata)" in missing(error.value)

    def test_is_said_how_to_make_for_marks(self, engine):
        with pytest.raises(OperationalError) as error:
            SqlMarks(engine).raise_mark("k", Writer("k", 5, "o1"))

        assert "gates_table(metadata)" in missing(error.value)

    def test_isnt_what_another_error_is_taken_for(self, app, connection):
        connection.execute("DROP TABLE fence_gates")
        connection.execute("CREATE TABLE fence_gates (scope)")
        with hold("k", app=app), pytest.raises(sqlite3.OperationalError) as error:
            pass_gate(connection)

        assert missing(error.value) == ""


class TestAFenceKeyThatCantBeRight:
    def test_is_called_what_it_is_in_the_class(self):
        class Other(DeclarativeBase):
            pass

        with pytest.raises(ConfigError, match=r"^__fence_key__ of Job, 'job:\{id\}': .*write <id>") as error:
            type(
                "Job",
                (FencedMixin, Other),
                {"__tablename__": "j", "__fence_key__": "job:{id}", "id": Column(Integer, primary_key=True)},
            )

        assert "lock_key" not in str(error.value)

    def test_is_called_what_it_is_at_a_table(self):
        table = Table("t", MetaData(), Column("id", Integer, primary_key=True), *fence_columns())
        with pytest.raises(ConfigError, match=r"^The key of fence_table\(t\), 'job:<>': "):
            fence_table(table, "job:<>")


class TestARefusalOutsideAnApp:
    def test_is_the_line_that_an_app_would_write(self, caplog):
        gate = TokenGate(MemoryMarks())
        gate.admits(Stamp("k", 6))
        with caplog.at_level(logging.WARNING):
            gate.admits(Stamp("k", 5), what="PUT /payouts/7")

        (record,) = caplog.records
        assert (record.name, record.key, record.token) == ("celery_fence", "k", 5)
        assert record.getMessage() == (
            "Refused PUT /payouts/7 with token 5 for 'k' on behalf of 'k', where token 6 has been seen"
        )


class TestWhatIsOfAnotherKind:
    @pytest.mark.parametrize("make", [lambda given: FencedStream(given, "payouts"), RedisMarks])
    def test_a_url_is_no_client(self, make):
        with pytest.raises(ConfigError, match=r"from_url.*not str"):
            make("redis://localhost")

    def test_a_client_is_no_store_of_marks(self):
        with pytest.raises(ConfigError, match=r"RedisMarks\(client\), not Redis"):
            TokenGate(redis.Redis(port=1))

    def test_a_text_is_no_event(self, stream):
        with pytest.raises(ConfigError, match=r"mapping .*'paid'"):
            stream.append("payout:7", "paid", Stamp("payout:7", 5))

    @pytest.mark.parametrize(
        "wrong", [{"aggregate": 7}, {"aggregate": None}, {"aggregate": ""}, {"key": 7}, {"event_id": 7}]
    )
    def test_a_number_is_no_name_in_a_stream(self, stream, wrong):
        with pytest.raises(ConfigError, match=f"The {next(iter(wrong))} of append"):
            stream.append(**{"aggregate": "k", "event": {"a": 1}, "lease": Stamp("k", 5), **wrong})

    @pytest.mark.parametrize("scope", ["", 7, Stamp("k", 5)])
    def test_what_is_no_key_is_no_scope(self, connection, scope):
        with pytest.raises(ConfigError, match=r"scope of pass_gate.*lease="):
            pass_gate(connection, scope, Stamp("k", 5))


def test_an_unfenced_write_is_refused_in_words_that_can_be_read():
    assert str(Refusal("unfenced", "payouts", None).told()).startswith("An unfenced write was refused")
    assert str(Refusal("delete", "payouts", None).told()).startswith("A delete was refused")
