"""
Reading and writing the books.

A charge is three steps: `Ledger.begin` reads the invoice, the payment provider
takes its time, `Ledger.settle` writes. Between reading and writing a process can
be frozen for as long as its machine likes. What it then writes is refused by the
database: the models have the `FencedMixin`, so the UPDATE compares tokens itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import create_engine, event, make_url, select, text
from sqlalchemy.orm import sessionmaker

from celery_fence.fencing.gate import pass_gate
from celery_fence.fencing.sqlalchemy import fence
from example_app.models import TRIGGERS, Base, Charge, Invoice, JournalEntry, Tenant

OPENING_CENTS = 100_000
SLOW_ONE = 10
BUSY_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Run:
    """Which execution is at work: its message, its process, and its token (None without a fence)."""

    task_id: str
    who: str
    pid: int
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Bill:
    """An invoice and its tenant, as they were read at journal line *begun*."""

    invoice: Invoice
    tenant: Tenant
    begun: int

    @property
    def is_paid(self) -> bool:
        """Whether there is nothing to do."""
        return self.invoice.status == "paid"

    def receipt(self) -> dict[str, Any]:
        """What the task returns: whose run charged, and how much."""
        return {"receipt": self.invoice.receipt, "cents": self.invoice.amount_cents}


class Ledger:
    """
    The books behind one database URL (SQLite or PostgreSQL); connects when first used.

    With ``fenced=False`` the very same code runs without its guards, for the demo's comparison.
    """

    def __init__(self, url: str, *, fenced: bool = True) -> None:
        dialect = make_url(url).get_backend_name()
        if dialect not in {"sqlite", "postgresql"}:
            raise ValueError(f"the billing example knows sqlite and postgresql URLs, not {dialect}")
        self._engine = create_engine(url)
        if dialect == "sqlite":
            event.listen(self._engine, "connect", _prepare_sqlite)
        # A bill outlives the transaction that has read it.
        self._sessions = sessionmaker(self._engine, expire_on_commit=False)
        self._fenced = fenced
        if not self._fenced:
            fence(self._sessions, mode="off")

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def open(self, tenants: int, *, slow_seconds: float) -> None:
        """Create what is missing, and give each new tenant one unpaid invoice."""
        Base.metadata.create_all(self._engine)
        if not self._fenced:
            self._drop_triggers()
        with self._sessions.begin() as session:
            known = set(session.scalars(select(Tenant.id)))
            fresh = [number for number in range(1, tenants + 1) if number not in known]
            session.add_all(_tenant(number) for number in fresh)
            session.flush()
            session.add_all(_invoice(number, slow_seconds) for number in fresh)

    def _drop_triggers(self) -> None:
        with self._engine.begin() as connection:
            for trigger in TRIGGERS:
                for statement in trigger.drop(self._engine.dialect.name):
                    connection.exec_driver_sql(statement)

    def invoices(self, tenant_id: int | None = None) -> list[Invoice]:
        """Every tenant's invoice, or only that of one."""
        wanted = select(Invoice).order_by(Invoice.tenant_id)
        if tenant_id is not None:
            wanted = wanted.where(Invoice.tenant_id == tenant_id)
        with self._sessions() as session:
            return list(session.scalars(wanted))

    def begin(self, tenant_id: int, invoice_id: int, run: Run) -> Bill:
        """
        Read a tenant's invoice, and write into the journal that its charge begins, unless it is paid.

        `StaleToken`, with nothing written, when a newer run has begun.
        """
        with self._sessions.begin() as session:
            if self._fenced:  # a new line has no older row to compare with: so the tenant's gate compares
                pass_gate(session)
            invoice = session.get_one(Invoice, invoice_id)
            tenant = session.get_one(Tenant, tenant_id)
            entry = _entry("already paid" if invoice.status == "paid" else "started", tenant_id, run)
            session.add(entry)
        return Bill(invoice, tenant, begun=entry.id)

    def settle(self, bill: Bill, run: Run) -> None:
        """Take the money, all or nothing; `StaleToken`, with nothing changed, when a newer run was here."""
        with self._sessions.begin() as session:
            session.add_all([bill.tenant, bill.invoice])
            bill.tenant.balance_cents -= bill.invoice.amount_cents
            bill.invoice.status = "paid"
            bill.invoice.receipt = run.task_id
            session.add(_charge(bill))
            session.add(_entry("charged", bill.tenant.id, run))

    def note(self, what: str, tenant_id: int, run: Run, *, receipt: str | None = None) -> int:
        """Add a line to the journal, at once and for good, and return its number."""
        entry = _entry(what, tenant_id, run, receipt=receipt)
        with self._sessions.begin() as session:
            session.add(entry)
        return entry.id

    def journal(self, after: int = 0) -> list[JournalEntry]:
        """The lines behind line *after*, in order."""
        with self._sessions() as session:
            later = select(JournalEntry).where(JournalEntry.id > after).order_by(JournalEntry.id)
            return list(session.scalars(later))

    def number(self, statement: str, **parameters: Any) -> int:
        """The one number that an SQL question has for an answer."""
        with self._engine.connect() as connection:
            return int(connection.execute(text(statement), parameters).scalar_one() or 0)


def _charge(bill: Bill) -> Charge:
    amount = bill.invoice.amount_cents
    return Charge(invoice_id=bill.invoice.id, amount_cents=amount, begun=bill.begun, at=time.time())


def _entry(what: str, tenant_id: int, run: Run, *, receipt: str | None = None) -> JournalEntry:
    return JournalEntry(
        at=time.time(),
        what=what,
        who=run.who,
        pid=run.pid,
        tenant_id=tenant_id,
        task_id=run.task_id,
        token=run.token,
        receipt=receipt,
    )


def _tenant(number: int) -> Tenant:
    name = f"Tenant {number}"
    return Tenant(id=number, name=name, opening_cents=OPENING_CENTS, balance_cents=OPENING_CENTS)


def _invoice(number: int, slow_seconds: float) -> Invoice:
    """50 to 200 ms of work, and one tenant in a hundred for whom the provider takes *slow_seconds*."""
    quick_seconds = 0.05 + (number * 37 % 16) / 100
    return Invoice(
        tenant_id=number,
        amount_cents=1_000 + number * 17 % 900,
        seconds_to_charge=slow_seconds if number % 100 == SLOW_ONE else quick_seconds,
        status="unpaid",
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """WAL, so readers don't wait; a busy time-out, so writers do."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.close()
