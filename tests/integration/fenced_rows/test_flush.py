"""What a flush of fenced objects lets pass and refuses, on each database."""

from __future__ import annotations

import pytest
from bench.leases import lease, under
from bench.payouts import Invoice, Note, Payout, Tenant, Versioned
from sqlalchemy import event, select, text
from sqlalchemy.orm import Session, make_transient
from sqlalchemy.orm.exc import StaleDataError

from celery_fence import StaleToken
from celery_fence.errors import ScopeMismatch, UnfencedWrite
from celery_fence.fencing.sqlalchemy import RowChanged, RowGone
from celery_fence.locking.null_lease import NullLease

SEVEN = "SELECT state, last_fencing_token, last_fencing_owner FROM payouts WHERE id = 7"


@pytest.fixture
def written(raw):
    """Payout 7 as a run with token 5 has left it."""
    raw(
        "INSERT INTO payouts (id, state, amount, last_fencing_token, last_fencing_owner) "
        "VALUES (7, 'new', 0, 5, 'owner-5')"
    )


def write(engine, *leases, state="written"):
    """One run: read payout 7, change it, commit."""
    with under(*leases), Session(engine) as session:
        session.get_one(Payout, 7).state = state
        session.commit()


def drop(engine, *leases):
    with under(*leases), Session(engine) as session:
        session.delete(session.get_one(Payout, 7))
        session.commit()


class Statements:
    """The statements that an engine sends while this is entered."""

    def __init__(self, engine):
        self.engine = engine
        self.sent = []

    def __enter__(self):
        event.listen(self.engine, "before_cursor_execute", self._note)
        return self.sent

    def __exit__(self, *_):
        event.remove(self.engine, "before_cursor_execute", self._note)

    def _note(self, _connection, _cursor, statement, _parameters, _context, _many):
        self.sent.append(statement)


def test_a_newer_token_writes_and_leaves_its_stamp(engine, raw, written):
    write(engine, lease("payout:7", 6))

    assert raw(SEVEN) == [("written", 6, "owner-6")]


def test_the_same_run_writes_again(engine, raw, written):
    write(engine, lease("payout:7", 5))

    assert raw(SEVEN) == [("written", 5, "owner-5")]


@pytest.mark.parametrize("action", [write, drop])
@pytest.mark.parametrize("shown", [(4, "owner-4"), (5, "somebody else")])
def test_an_older_token_and_an_equal_one_of_another_owner_are_refused(engine, raw, written, action, shown):
    held = lease("payout:7", *shown)

    with pytest.raises(StaleToken) as refusal:
        action(engine, held)

    assert raw(SEVEN) == [("new", 5, "owner-5")]
    assert (refusal.value.scope, refusal.value.token, refusal.value.seen) == ("payout:7", held.token, 5)
    assert [(told.what.split()[0], told.seen_owner, told.refused) for told in held.source] == [
        ("UPDATE" if action is write else "DELETE", "owner-5", True)
    ]


def test_a_newer_token_deletes(engine, raw, written):
    drop(engine, lease("payout:7", 6))

    assert raw(SEVEN) == []


@pytest.mark.parametrize("action", [write, drop])
def test_a_write_under_another_keys_lease_is_an_error(engine, raw, written, action):
    with pytest.raises(ScopeMismatch, match="'payout:7' with the lease on 'payout:8'"):
        action(engine, lease("payout:8", 9))

    assert raw(SEVEN) == [("new", 5, "owner-5")]


@pytest.mark.parametrize("action", [write, drop])
def test_a_write_without_a_token_is_refused(engine, raw, written, action):
    with pytest.raises(UnfencedWrite, match="no lease here"):
        action(engine)
    with pytest.raises(UnfencedWrite, match="this run has none"):
        action(engine, NullLease())

    assert raw(SEVEN) == [("new", 5, "owner-5")]


def test_among_nested_leases_the_one_of_the_rows_key_counts(engine, raw, written):
    write(engine, lease("payout:7", 6), lease("payout:8", 3))

    assert raw(SEVEN) == [("written", 6, "owner-6")]


def test_a_stale_writer_that_read_before_the_newer_one_wrote_is_refused(engine, raw, written):
    with under(lease("payout:7", 6)), Session(engine) as session:
        payout = session.get_one(Payout, 7)
        session.commit()
        payout.amount  # noqa: B018 - read again
        session.rollback()
        write(engine, lease("payout:7", 8), state="newer")
        payout.state = "late"
        with pytest.raises(StaleToken):
            session.commit()

    assert raw(SEVEN) == [("newer", 8, "owner-8")]


def test_what_an_older_holder_commits_late_is_not_overwritten_unread(engine, raw, written):
    """The newest token is ours, and yet our row was read before the other's change."""
    with Session(engine, expire_on_commit=False) as session:
        with under(lease("payout:7", 9)):
            payout = session.get_one(Payout, 7)
            session.commit()
            raw(
                "UPDATE payouts SET state = 'older', last_fencing_token = 6, last_fencing_owner = 'o' WHERE id = 7"
            )
            payout.amount = 1
            with pytest.raises(RowChanged, match="read it again"):
                session.commit()
        session.rollback()

    assert raw(SEVEN) == [("older", 6, "o")]


def test_what_an_older_holder_commits_late_is_not_deleted_unread(engine, raw, written):
    with under(lease("payout:7", 9)), Session(engine, expire_on_commit=False) as session:
        payout = session.get_one(Payout, 7)
        session.commit()
        raw(
            "UPDATE payouts SET state = 'older', last_fencing_token = 6, last_fencing_owner = 'o' WHERE id = 7"
        )
        session.delete(payout)
        with pytest.raises(RowChanged):
            session.commit()

    assert raw(SEVEN) == [("older", 6, "o")]


def test_rows_that_are_gone_are_told_apart(engine, raw, written):
    with under(lease("payout:7", 9)), Session(engine, expire_on_commit=False) as session:
        payout = session.get_one(Payout, 7)
        session.commit()
        raw("DELETE FROM payouts")
        payout.amount = 1
        with pytest.raises(RowGone, match=r"\(7,\)"):
            session.commit()


def test_an_ordinary_version_check_is_told_apart_and_goes_on_working(engine, raw):
    raw("INSERT INTO versioned (id, state, version, last_fencing_token) VALUES (1, 'new', 1, 5)")
    with under(lease("versioned:1", 6)), Session(engine, expire_on_commit=False) as session:
        row = session.get_one(Versioned, 1)
        row.state = "first"
        session.commit()
        assert row.version == 2
        raw("UPDATE versioned SET version = 7")
        row.state = "second"
        with pytest.raises(StaleDataError) as changed:
            session.commit()

    assert not isinstance(changed.value, StaleToken | RowGone)
    assert raw("SELECT state, version, last_fencing_token FROM versioned") == [("first", 7, 6)]


def test_a_stale_write_to_a_versioned_row_is_stale(engine, raw):
    raw("INSERT INTO versioned (id, state, version, last_fencing_token) VALUES (1, 'new', 1, 5)")
    with under(lease("versioned:1", 6)), Session(engine, expire_on_commit=False) as session:
        row = session.get_one(Versioned, 1)
        session.commit()
        raw("UPDATE versioned SET version = 2, last_fencing_token = 8, last_fencing_owner = 'newer'")
        row.state = "late"
        with pytest.raises(StaleToken) as refusal:
            session.commit()

    assert refusal.value.seen == 8


def test_one_stale_row_of_a_batch_takes_back_all_of_it(engine, raw):
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one')")
    for number in range(1, 6):
        token = 9 if number == 4 else 0
        raw(
            f"INSERT INTO invoices (id, tenant_id, total, last_fencing_token) VALUES ({number}, 1, 0, {token})"
        )
    with under(lease("tenant:1", 6)), Session(engine) as session:
        for invoice in session.scalars(select(Invoice)):
            invoice.total = 10
        with pytest.raises(StaleToken) as refusal:
            session.commit()

    assert refusal.value.seen == 9
    assert raw("SELECT DISTINCT total FROM invoices") == [(0,)]


def test_one_stale_row_of_a_batch_of_deletes_keeps_all_of_it(engine, raw):
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one')")
    for number in range(1, 6):
        token = 9 if number == 4 else 0
        raw(
            f"INSERT INTO invoices (id, tenant_id, total, last_fencing_token) VALUES ({number}, 1, 0, {token})"
        )
    with under(lease("tenant:1", 6)), Session(engine) as session:
        for invoice in session.scalars(select(Invoice)):
            session.delete(invoice)
        with pytest.raises(StaleToken):
            session.commit()

    assert raw("SELECT count(*) FROM invoices") == [(5,)]


def test_a_flush_costs_no_statement_more_than_without_a_fence(engine, raw, database):
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one')")
    for number in range(1, 6):
        raw(f"INSERT INTO invoices (id, tenant_id, total, last_fencing_token) VALUES ({number}, 1, 0, 0)")
    with under(lease("tenant:1", 6)), Session(engine) as session:
        invoices = session.scalars(select(Invoice).order_by(Invoice.id)).all()
        with Statements(engine) as sent:
            for invoice in invoices:
                invoice.total = 10
            session.flush()
            invoices[0].total = 20
            session.flush()
            session.delete(invoices[1])
            session.delete(invoices[2])
            session.flush()
        session.commit()

    assert [statement.split()[0] for statement in sent] == ["UPDATE", "UPDATE", "DELETE"]
    assert all("last_fencing_token BETWEEN" in statement for statement in sent)


def test_an_object_without_changes_is_not_written(engine, raw, written):
    with Session(engine) as session, Statements(engine) as sent:
        payout = session.get_one(Payout, 7)
        payout.state = str(payout.state)
        session.commit()

    assert [statement.split()[0] for statement in sent] == ["SELECT"]


def test_a_new_row_needs_no_lease_in_the_transaction_that_makes_it(engine, raw):
    with Session(engine) as session:
        payout = Payout(id=7)
        session.add(payout)
        session.flush()
        payout.state = "numbered"
        session.commit()
        payout.state = "later"
        with pytest.raises(UnfencedWrite):
            session.commit()

    assert raw(SEVEN) == [("numbered", 0, None)]


def test_a_new_row_of_a_leased_key_is_stamped_so_an_older_holder_cannot_change_it(engine, raw):
    with under(lease("payout:7", 6)), Session(engine) as session:
        session.add(Payout(id=7))
        session.commit()

    with pytest.raises(StaleToken):
        write(engine, lease("payout:7", 5))
    assert raw(SEVEN) == [("new", 6, "owner-6")]


def test_a_row_cannot_move_to_another_key(engine, raw):
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one'), (2, 'two')")
    raw("INSERT INTO invoices (id, tenant_id, total) VALUES (1, 1, 0)")
    with under(lease("tenant:1", 6), lease("tenant:2", 6)), Session(engine) as session:
        session.get_one(Invoice, 1).tenant_id = 2
        with pytest.raises(UnfencedWrite, match="from 'tenant:1' to 'tenant:2'"):
            session.commit()

    assert raw("SELECT tenant_id FROM invoices") == [(1,)]


def test_children_that_a_cascade_deletes_are_fenced(engine, raw):
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one')")
    raw("INSERT INTO notes (id, tenant_id, text, last_fencing_token) VALUES (1, 1, 'a', 0), (2, 1, 'b', 9)")
    with under(lease("tenant:1", 6)), Session(engine) as session:
        session.delete(session.get_one(Tenant, 1))
        with pytest.raises(StaleToken):
            session.commit()

    assert raw("SELECT count(*) FROM notes") == [(2,)]
    assert raw("SELECT count(*) FROM tenants") == [(1,)]


def test_an_orphan_is_fenced(engine, raw):
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one')")
    raw("INSERT INTO notes (id, tenant_id, text, last_fencing_token) VALUES (1, 1, 'a', 9)")
    with under(lease("tenant:1", 6)), Session(engine) as session:
        tenant = session.get_one(Tenant, 1)
        tenant.notes.clear()
        with pytest.raises(StaleToken):
            session.commit()

    assert raw("SELECT count(*) FROM notes") == [(1,)]


def test_a_child_that_a_cascade_would_take_from_its_key_is_refused(engine, raw):
    """Deleting the tenant sets the invoice's tenant_id to NULL, and that is another key."""
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one')")
    raw("INSERT INTO invoices (id, tenant_id, total) VALUES (1, 1, 0)")
    with under(lease("tenant:1", 6)), Session(engine) as session:
        session.delete(session.get_one(Tenant, 1))
        with pytest.raises(UnfencedWrite, match="would move"):
            session.commit()

    assert raw("SELECT tenant_id FROM invoices") == [(1,)]


def test_merging_an_older_copy_does_not_undo_what_was_written_since(engine, raw, written):
    with Session(engine) as session:
        copy = session.get_one(Payout, 7)
        session.expunge(copy)
    write(engine, lease("payout:7", 6), state="newer")
    copy.state = "older"

    with under(lease("payout:7", 8)), Session(engine) as session:
        session.merge(copy)
        with pytest.raises(RowChanged):
            session.commit()

    assert raw(SEVEN) == [("newer", 6, "owner-6")]


def test_merging_a_copy_of_what_is_there_writes_it(engine, raw, written):
    with Session(engine) as session:
        copy = session.get_one(Payout, 7)
        session.expunge(copy)
    copy.state = "merged"
    with under(lease("payout:7", 8)), Session(engine) as session:
        session.merge(copy)
        session.commit()

    assert raw(SEVEN) == [("merged", 8, "owner-8")]


def test_a_refreshed_object_is_written_as_it_was_read_last(engine, raw, written):
    with under(lease("payout:7", 8)), Session(engine, expire_on_commit=False) as session:
        payout = session.get_one(Payout, 7)
        session.commit()
        raw("UPDATE payouts SET amount = 3, last_fencing_token = 6, last_fencing_owner = 'o' WHERE id = 7")
        session.refresh(payout)
        payout.state = "fresh"
        session.commit()

    assert raw(SEVEN) == [("fresh", 8, "owner-8")]


def test_a_savepoint_that_is_rolled_back_leaves_the_session_usable(engine, raw, written):
    with under(lease("payout:7", 8)), Session(engine) as session:
        payout = session.get_one(Payout, 7)
        savepoint = session.begin_nested()
        payout.state = "undone"
        session.flush()
        savepoint.rollback()
        assert payout.last_fencing_token == 5
        payout.state = "done"
        session.commit()

    assert raw(SEVEN) == [("done", 8, "owner-8")]


def test_a_stale_write_in_a_savepoint_is_refused(engine, raw, written):
    with under(lease("payout:7", 4)), Session(engine) as session:
        payout = session.get_one(Payout, 7)
        with pytest.raises(StaleToken), session.begin_nested():
            payout.state = "stale"
        session.commit()

    assert raw(SEVEN) == [("new", 5, "owner-5")]


def test_a_new_primary_key_is_written_under_its_old_one(engine, raw):
    raw("INSERT INTO tenants (id, name) VALUES (1, 'one')")
    raw("INSERT INTO notes (id, tenant_id, text, last_fencing_token) VALUES (1, 1, 'a', 9), (2, 1, 'b', 3)")
    with under(lease("tenant:1", 6)), Session(engine) as session:
        session.get_one(Note, 2).id = 20
        session.commit()
        session.get_one(Note, 1).id = 10
        with pytest.raises(StaleToken):
            session.commit()

    assert sorted(raw("SELECT id, last_fencing_token FROM notes")) == [(1, 9), (20, 6)]


def test_an_expression_is_fenced_as_a_value_is(engine, raw, written):
    with under(lease("payout:7", 4)), Session(engine) as session:
        session.get_one(Payout, 7).amount = Payout.amount + 1
        with pytest.raises(StaleToken):
            session.commit()
    with under(lease("payout:7", 6)), Session(engine) as session:
        session.get_one(Payout, 7).amount = Payout.amount + 1
        session.commit()

    assert raw("SELECT amount, last_fencing_token FROM payouts") == [(1, 6)]


def test_an_owner_that_is_too_long_for_the_column_is_kept_as_its_digest(engine, raw, written):
    long = f"{'a' * 32}.{'b' * 32}"
    write(engine, lease("payout:7", 6, long))
    write(engine, lease("payout:7", 6, long), state="again")

    state, token, owner = raw(SEVEN)[0]
    assert (state, token, len(owner)) == ("again", 6, 64)
    with pytest.raises(StaleToken):
        write(engine, lease("payout:7", 6, long[:-1]))


def test_what_was_inserted_in_a_savepoint_is_new_only_as_long_as_that_stands(engine, raw):
    with Session(engine) as session:
        session.add(Payout(id=1))
        session.flush()
        savepoint = session.begin_nested()
        session.add(Payout(id=2))
        session.flush()
        savepoint.rollback()
        session.get_one(Payout, 1).state = "still new"
        session.commit()
    assert raw("SELECT id, state FROM payouts") == [(1, "still new")]

    with Session(engine) as session:
        savepoint = session.begin_nested()
        session.add(Payout(id=2))
        session.flush()
        savepoint.rollback()
        session.execute(text("INSERT INTO payouts (id, state, amount) VALUES (2, 'anothers', 0)"))
        session.get_one(Payout, 2).state = "not new"
        with pytest.raises(UnfencedWrite):
            session.commit()


def test_an_object_knows_its_stamp_without_reading_it_again(engine, raw, written):
    with (
        under(lease("payout:7", 6), lease("payout:8", 7)),
        Session(engine, expire_on_commit=False) as session,
    ):
        old, new = session.get_one(Payout, 7), Payout(id=8)
        session.add(new)
        old.state = "written"
        session.commit()
        with Statements(engine) as sent:
            stamps = [(each.last_fencing_token, each.last_fencing_owner) for each in (old, new)]

    assert stamps == [(6, "owner-6"), (7, "owner-7")]
    assert sent == []


def test_a_copy_of_a_row_doesnt_bring_its_token_along(engine, raw, written):
    with Session(engine) as session:
        copy = session.get_one(Payout, 7)
        session.expunge(copy)
        make_transient(copy)
        copy.id = 8
        session.add(copy)
        session.commit()

    assert raw("SELECT last_fencing_token, last_fencing_owner FROM payouts WHERE id = 8") == [(0, None)]


def test_two_sessions_of_one_run_may_write_the_same_row(engine, raw, written):
    with under(lease("payout:7", 6)), Session(engine) as one, Session(engine) as other:
        first, second = one.get_one(Payout, 7), other.get_one(Payout, 7)
        first.state = "first"
        one.commit()
        second.amount = 2
        other.commit()

    assert raw("SELECT state, amount, last_fencing_token FROM payouts") == [("first", 2, 6)]


def test_in_autocommit_mode_nothing_is_written(engine, raw, written):
    without = engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(UnfencedWrite, match="autocommit"):
        write(without, lease("payout:7", 6))

    assert raw(SEVEN) == [("new", 5, "owner-5")]
