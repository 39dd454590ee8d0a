"""
Reading and writing the books.

A charge is three steps: `Ledger.begin` reads the invoice, the payment provider
takes its time, `Ledger.settle` writes. Between reading and writing a process can
be frozen for as long as its machine likes, so `settle` doesn't rely on what was
read: it shows its fencing token to the tenant's row in the same transaction.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import CursorResult, create_engine, event, make_url, select, text, update
from sqlalchemy.orm import Session

from celery_fence import StaleToken
from example_app.models import Base, Charge, Invoice, JournalEntry, Tenant

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
    """An unpaid invoice, as it was read at journal line *begun*."""

    tenant_id: int
    invoice_id: int
    amount_cents: int
    balance_cents: int
    seconds_to_charge: float
    begun: int


class Ledger:
    """The books behind one database URL (SQLite or PostgreSQL); connects when first used."""

    def __init__(self, url: str) -> None:
        dialect = make_url(url).get_backend_name()
        if dialect not in {"sqlite", "postgresql"}:
            raise ValueError(f"the billing example knows sqlite and postgresql URLs, not {dialect}")
        self._engine = create_engine(url)
        if dialect == "sqlite":
            event.listen(self._engine, "connect", _prepare_sqlite)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def open(self, tenants: int, *, slow_seconds: float) -> None:
        """Create what is missing, and give each new tenant one unpaid invoice."""
        Base.metadata.create_all(self._engine)
        with Session(self._engine) as session, session.begin():
            known = set(session.scalars(select(Tenant.id)))
            fresh = [number for number in range(1, tenants + 1) if number not in known]
            session.add_all(_tenant(number) for number in fresh)
            session.flush()
            session.add_all(_invoice(number, slow_seconds) for number in fresh)

    def tenants(self) -> list[int]:
        """Every tenant's number."""
        with Session(self._engine) as session:
            return list(session.scalars(select(Tenant.id).order_by(Tenant.id)))

    def seconds_to_charge(self) -> dict[int, float]:
        """How long the payment provider takes for each tenant."""
        with Session(self._engine) as session:
            return dict(session.execute(select(Invoice.tenant_id, Invoice.seconds_to_charge)).tuples().all())

    def begin(self, tenant_id: int, run: Run) -> Bill | None:
        """Read the tenant's invoice; None when it is paid already."""
        with Session(self._engine) as session:
            invoice = session.scalars(select(Invoice).where(Invoice.tenant_id == tenant_id)).one()
            tenant = session.get_one(Tenant, tenant_id)
        if invoice.status == "paid":
            self.note("already paid", tenant_id, run)
            return None
        return Bill(
            tenant_id=tenant_id,
            invoice_id=invoice.id,
            amount_cents=invoice.amount_cents,
            balance_cents=tenant.balance_cents,
            seconds_to_charge=invoice.seconds_to_charge,
            begun=self.note("started", tenant_id, run),
        )

    def settle(self, bill: Bill, run: Run) -> None:
        """Take the money, all or nothing; `StaleToken`, with nothing changed, when a newer token was here."""
        try:
            with Session(self._engine) as session, session.begin():
                _write_balance(session, bill, run.token)
                paid = {Invoice.status: "paid", Invoice.receipt: run.task_id}
                session.execute(update(Invoice).where(Invoice.id == bill.invoice_id).values(paid))
                session.add(_charge(bill))
                session.add(_entry("charged", bill.tenant_id, run))
        except StaleToken as refusal:
            self.note("refused", bill.tenant_id, run, seen_token=refusal.seen)
            raise

    def note(self, what: str, tenant_id: int, run: Run, *, seen_token: int | None = None) -> int:
        """Add a line to the journal, at once and for good, and return its number."""
        entry = _entry(what, tenant_id, run, seen_token=seen_token)
        with Session(self._engine, expire_on_commit=False) as session, session.begin():
            session.add(entry)
        return entry.id

    def journal(self, after: int = 0) -> list[JournalEntry]:
        """The lines behind line *after*, in order."""
        with Session(self._engine) as session:
            later = select(JournalEntry).where(JournalEntry.id > after).order_by(JournalEntry.id)
            return list(session.scalars(later))

    def number(self, statement: str, **parameters: Any) -> int:
        """The one number that an SQL question has for an answer."""
        with self._engine.connect() as connection:
            return int(connection.execute(text(statement), parameters).scalar_one() or 0)


def _write_balance(session: Session, bill: Bill, token: int | None) -> None:
    """
    Write the new balance, if no newer token has written before: ONE conditional statement.

    It comes first in the transaction, so a stale run changes nothing at all, and
    it locks the row until commit, so that two runs can't get past it at once.
    """
    write = update(Tenant).where(Tenant.id == bill.tenant_id)
    write = write.values(balance_cents=bill.balance_cents - bill.amount_cents)
    if token is not None:
        write = write.where(Tenant.last_fencing_token <= token).values(last_fencing_token=token)
    if cast("CursorResult[Any]", session.execute(write)).rowcount == 0:
        seen = session.get_one(Tenant, bill.tenant_id).last_fencing_token
        raise StaleToken(
            f"tenant {bill.tenant_id}: {seen} has written since, so {token} is stale; nothing was changed",
            scope=f"tenant:{bill.tenant_id}",
            token=token,
            seen=seen,
        )


def _charge(bill: Bill) -> Charge:
    amount = bill.amount_cents
    return Charge(invoice_id=bill.invoice_id, amount_cents=amount, begun=bill.begun, at=time.time())


def _entry(what: str, tenant_id: int, run: Run, *, seen_token: int | None = None) -> JournalEntry:
    return JournalEntry(
        at=time.time(),
        what=what,
        who=run.who,
        pid=run.pid,
        tenant_id=tenant_id,
        task_id=run.task_id,
        token=run.token,
        seen_token=seen_token,
    )


def _tenant(number: int) -> Tenant:
    return Tenant(
        id=number,
        name=f"Tenant {number}",
        opening_cents=OPENING_CENTS,
        balance_cents=OPENING_CENTS,
        last_fencing_token=0,
    )


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
