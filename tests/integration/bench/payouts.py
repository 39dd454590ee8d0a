"""Fenced tables of a small business."""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from celery_fence.fencing.sqlalchemy import FencedMixin, fence_columns


class Base(DeclarativeBase):
    """What all tables here have in common."""


class Payout(FencedMixin, Base):
    __tablename__ = "payouts"
    __fence_key__ = "payout:<id>"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(30), default="new")
    amount: Mapped[int] = mapped_column(default=0)


class Shadowed(FencedMixin, Base):
    __tablename__ = "shadowed"
    __fence_key__ = "shadowed:<id>"
    __fence_mode__ = "shadow"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(30), default="new")


class Versioned(FencedMixin, Base):
    __tablename__ = "versioned"
    __fence_key__ = "versioned:<id>"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(30), default="new")
    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__: ClassVar = {"version_id_col": version}


class Tenant(Base):
    """Not fenced: what belongs to it is."""

    __tablename__ = "tenants"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(30), default="")
    invoices: Mapped[list[Invoice]] = relationship(back_populates="tenant")
    notes: Mapped[list[Note]] = relationship(cascade="all, delete-orphan")


class Invoice(FencedMixin, Base):
    """One key for all invoices of a tenant."""

    __tablename__ = "invoices"
    __fence_key__ = "tenant:<tenant_id?>"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id"))
    total: Mapped[int] = mapped_column(default=0)
    tenant: Mapped[Tenant | None] = relationship(back_populates="invoices")


class Note(FencedMixin, Base):
    __tablename__ = "notes"
    __fence_key__ = "tenant:<tenant_id>"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    text: Mapped[str] = mapped_column(String(30), default="")


class Document(FencedMixin, Base):
    """The base of a joined (`Contract`) and of a single-table (`Letter`) subclass."""

    __tablename__ = "documents"
    __fence_key__ = "document:<id>"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    title: Mapped[str] = mapped_column(String(30), default="")
    __mapper_args__: ClassVar = {"polymorphic_on": "kind", "polymorphic_identity": "document"}


class Contract(Document):
    __tablename__ = "contracts"

    id: Mapped[int] = mapped_column(ForeignKey("documents.id"), primary_key=True)
    clause: Mapped[str] = mapped_column(String(30), default="")
    __mapper_args__: ClassVar = {"polymorphic_identity": "contract"}


class Letter(Document):
    greeting: Mapped[str | None] = mapped_column(String(30))
    __mapper_args__: ClassVar = {"polymorphic_identity": "letter"}


core = MetaData()

accounts = Table(
    "accounts",
    core,
    Column("id", Integer, primary_key=True),
    Column("value", Integer, nullable=False, default=0),
    Column("note", String(30), nullable=True),
    *fence_columns(),
)
"""Not known to any guard by itself; only its fenced statements are fenced."""

plain_accounts = Table(
    "plain_accounts",
    core,
    Column("id", Integer, primary_key=True),
    Column("value", Integer, nullable=False, default=0),
    *fence_columns(),
)
"""The same, written to without a guard: what a negative control needs."""

ledger = Table(
    "ledger",
    core,
    Column("id", Integer, primary_key=True),
    Column("value", Integer, nullable=False),
    Column("token", Integer, nullable=False),
    Column("owner", String(64), nullable=False),
)
