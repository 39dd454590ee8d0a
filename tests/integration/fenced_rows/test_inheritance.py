"""Subclasses of a fenced class: in tables of their own, joined to its table, and in its table."""

from __future__ import annotations

from typing import ClassVar

import pytest
from bench.leases import lease, under
from bench.payouts import Contract, Document, Letter
from sqlalchemy import ForeignKey, String, delete, insert, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_fence import StaleToken
from celery_fence.errors import ConfigError, UnfencedWrite
from celery_fence.fencing.sqlalchemy import FencedMixin

ONE = "SELECT title, last_fencing_token FROM documents WHERE id = 1"


@pytest.fixture
def contract(raw):
    raw(
        "INSERT INTO documents (id, kind, title, last_fencing_token, last_fencing_owner) "
        "VALUES (1, 'contract', 'old', 5, 'owner-5')"
    )
    raw("INSERT INTO contracts (id, clause) VALUES (1, 'old')")
    return "SELECT title, clause, last_fencing_token FROM documents JOIN contracts USING (id)"


@pytest.fixture
def letter(raw):
    raw(
        "INSERT INTO documents (id, kind, title, greeting, last_fencing_token, last_fencing_owner) "
        "VALUES (1, 'letter', 'old', 'old', 5, 'owner-5')"
    )
    return "SELECT title, greeting, last_fencing_token FROM documents"


def test_a_change_of_the_subclass_table_alone_is_fenced_by_the_base_table(engine, raw, contract):
    with under(lease("document:1", 4)), Session(engine) as session:
        session.get_one(Document, 1).clause = "stale"
        with pytest.raises(StaleToken):
            session.commit()
    assert raw(contract) == [("old", "old", 5)]

    for text in ("new", "newer"):  # the second time, the stamp is what it was
        with under(lease("document:1", 6)), Session(engine) as session:
            session.get_one(Contract, 1).clause = text
            session.commit()
    assert raw(contract) == [("old", "newer", 6)]

    with under(lease("document:1", 5)), Session(engine) as session:
        session.get_one(Contract, 1).clause = "stale"
        with pytest.raises(StaleToken):
            session.commit()
    assert raw(contract) == [("old", "newer", 6)]


def test_a_second_change_of_the_subclass_table_alone_is_compared_once_more(engine, raw, contract):
    """Although the base table has nothing new to say: the run has written its token there before."""
    with under(lease("document:1", 6)), Session(engine, expire_on_commit=False) as session:
        changed = session.get_one(Contract, 1)
        changed.clause = "first"
        session.commit()
        raw("UPDATE documents SET last_fencing_token = 9, last_fencing_owner = 'newer'")
        changed.clause = "stale"
        with pytest.raises(StaleToken):
            session.commit()

    assert raw(contract) == [("old", "first", 9)]


def test_both_tables_are_deleted_or_none(engine, raw, contract):
    with under(lease("document:1", 4)), Session(engine) as session:
        session.delete(session.get_one(Document, 1))
        with pytest.raises(StaleToken):
            session.commit()
    assert raw(contract) == [("old", "old", 5)]

    with under(lease("document:1", 6)), Session(engine) as session:
        session.delete(session.get_one(Document, 1))
        session.commit()
    assert raw("SELECT (SELECT count(*) FROM documents) + (SELECT count(*) FROM contracts)") == [(0,)]


def test_a_new_object_of_a_joined_subclass_needs_no_lease(engine, raw):
    with Session(engine) as session:
        contract = Contract(id=1, title="new", clause="new")
        session.add(contract)
        session.flush()
        contract.clause = "signed"
        session.commit()

    assert raw("SELECT clause FROM contracts") == [("signed",)]


@pytest.mark.parametrize(
    "statement",
    [
        update(Contract).where(Contract.id == 1).values(clause="unfenced"),
        update(Contract.__table__).values(clause="unfenced"),
        delete(Contract.__table__),
    ],
    ids=["orm", "core", "delete"],
)
def test_a_statement_for_the_subclass_table_alone_is_refused(engine, raw, contract, statement):
    with under(lease("document:1", 6)), Session(engine) as session, pytest.raises(UnfencedWrite):
        session.execute(statement)

    assert raw(contract) == [("old", "old", 5)]


def test_a_bulk_update_of_both_tables_by_primary_key_is_refused_where_it_is_stale(engine, raw, contract):
    with (
        under(lease("document:1", 4)),
        Session(engine) as session,
        pytest.raises((StaleToken, UnfencedWrite)),
    ):
        session.execute(update(Contract), [{"id": 1, "title": "stale", "clause": "stale"}])

    assert raw(contract) == [("old", "old", 5)]


def test_a_subclass_in_the_same_table_is_fenced(engine, raw, letter):
    with under(lease("document:1", 4)), Session(engine) as session:
        session.get_one(Letter, 1).greeting = "stale"
        with pytest.raises(StaleToken):
            session.commit()
    with under(lease("document:1", 6)), Session(engine) as session:
        session.get_one(Letter, 1).greeting = "new"
        session.commit()

    assert raw(letter) == [("old", "new", 6)]


def test_a_statement_for_a_subclass_in_the_same_table_looks_at_its_rows_only(engine, raw, letter):
    raw("INSERT INTO documents (id, kind, title, last_fencing_token) VALUES (2, 'document', 'other', 9)")
    with under(lease("document:1", 6)), Session(engine) as session:
        session.execute(update(Letter).values(greeting="new"))
        session.commit()

    assert raw("SELECT id, greeting, last_fencing_token FROM documents ORDER BY id") == [
        (1, "new", 6),
        (2, None, 9),
    ]


def test_many_objects_of_several_classes_go_in_one_flush(engine, raw, contract):
    with Session(engine) as session:
        session.execute(insert(Document), [{"id": 2, "kind": "document", "title": "old"}])
        session.commit()
    with under(lease("document:1", 6), lease("document:2", 7)), Session(engine) as session:
        for document in session.scalars(select(Document)):
            document.title = "new"
        session.commit()

    assert raw("SELECT id, title, last_fencing_token FROM documents ORDER BY id") == [
        (1, "new", 6),
        (2, "new", 7),
    ]


def test_a_mixin_on_a_subclass_only_is_an_error_when_it_is_mapped():
    class Local(DeclarativeBase):
        pass

    class Whole(Local):
        __tablename__ = "whole"
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str] = mapped_column(String(10))
        __mapper_args__: ClassVar = {"polymorphic_on": "kind", "polymorphic_identity": "whole"}

    with pytest.raises(ConfigError, match="give the FencedMixin to the base class"):

        class Part(FencedMixin, Whole):
            __tablename__ = "part"
            __fence_key__ = "part:<id>"
            id: Mapped[int] = mapped_column(ForeignKey("whole.id"), primary_key=True)
            __mapper_args__: ClassVar = {"polymorphic_identity": "part"}
