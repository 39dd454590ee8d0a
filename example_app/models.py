"""The four tables of the billing service."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """What the tables have in common: the metadata they are created from."""


class Tenant(Base):
    """A customer's account. *last_fencing_token* is the newest token that has written here."""

    __tablename__ = "tenants"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    opening_cents: Mapped[int]
    balance_cents: Mapped[int]
    last_fencing_token: Mapped[int] = mapped_column(BigInteger, default=0)


class Invoice(Base):
    """
    What a tenant owes.

    *seconds_to_charge* is how long the payment provider takes; *receipt* names
    the message whose run wrote last.
    """

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"), index=True)
    amount_cents: Mapped[int]
    seconds_to_charge: Mapped[float]
    status: Mapped[str] = mapped_column(default="unpaid")
    receipt: Mapped[str | None]


class JournalEntry(Base):
    """One line of what happened, never changed later; *at* is wall-clock time, for people."""

    __tablename__ = "journal"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    what: Mapped[str] = mapped_column(index=True)
    who: Mapped[str]
    pid: Mapped[int]
    tenant_id: Mapped[int] = mapped_column(index=True)
    task_id: Mapped[str]
    token: Mapped[int | None] = mapped_column(BigInteger)
    seen_token: Mapped[int | None] = mapped_column(BigInteger)


class Charge(Base):
    """Money taken from a tenant. *begun* is the journal line at which the run read the invoice as unpaid."""

    __tablename__ = "charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    invoice_id: Mapped[int] = mapped_column(ForeignKey("invoices.id"), index=True)
    amount_cents: Mapped[int]
    begun: Mapped[int] = mapped_column(ForeignKey("journal.id"))
    at: Mapped[float]
