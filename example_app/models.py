"""The tables of the billing service, and what refuses stale writers in them."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from celery_fence.fencing.sqlalchemy import FencedMixin, fence_trigger, gates_table


class Base(DeclarativeBase):
    """What the tables have in common: the metadata they are created from."""


class Tenant(FencedMixin, Base):
    """A customer's account. A run that a newer one has followed can't change it any more."""

    __tablename__ = "tenants"
    __fence_key__ = "tenant:<id>:billing"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    opening_cents: Mapped[int]
    balance_cents: Mapped[int]


class Invoice(FencedMixin, Base):
    """
    What a tenant owes; fenced by the same key as the tenant.

    *seconds_to_charge* is how long the payment provider takes; *receipt* names
    the message whose run wrote last.
    """

    __tablename__ = "invoices"
    __fence_key__ = "tenant:<tenant_id>:billing"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"), index=True)
    amount_cents: Mapped[int]
    seconds_to_charge: Mapped[float]
    status: Mapped[str] = mapped_column(default="unpaid")
    receipt: Mapped[str | None]


class JournalEntry(Base):
    """
    One line of what happened, never changed later; *at* is wall-clock time, for people.

    *receipt* is what a record had for an answer.
    """

    __tablename__ = "journal"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    what: Mapped[str] = mapped_column(index=True)
    who: Mapped[str]
    pid: Mapped[int]
    tenant_id: Mapped[int] = mapped_column(index=True)
    task_id: Mapped[str]
    token: Mapped[int | None] = mapped_column(BigInteger)
    receipt: Mapped[str | None]


class Charge(Base):
    """Money taken from a tenant. *begun* is the journal line at which the run read the invoice as unpaid."""

    __tablename__ = "charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    invoice_id: Mapped[int] = mapped_column(ForeignKey("invoices.id"), index=True)
    amount_cents: Mapped[int]
    begun: Mapped[int] = mapped_column(ForeignKey("journal.id"))
    at: Mapped[float]


gates_table(Base.metadata)

# The mixin guards what goes through SQLAlchemy; these refuse everybody else.
TRIGGERS = [fence_trigger(Tenant), fence_trigger(Invoice)]
