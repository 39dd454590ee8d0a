"""
The nightly run's task: charge one tenant. Once with a fence, once without.

What to copy into your own app is `charge_tenant`, the mixin in `example_app.models`
and the gate in `example_app.ledger`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from celery import Task

from celery_fence import FencedTask, StaleToken, policies
from celery_fence.fencing.sqlalchemy import RowChanged
from celery_fence.signals import task_skipped
from example_app.celery import app, config
from example_app.config import LEASE_TTL
from example_app.ledger import Ledger, Run


class BillingTask(FencedTask):
    """A fenced task that tells the journal when its key was held, for the demo's timeline."""

    abstract = True

    def on_miss(self, miss: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Somebody else is charging this tenant; the miss policy sends the message again a little later."""
        super().on_miss(miss, args, kwargs)
        ledger(fenced=True).note("missed", args[0], run_of(self))


@app.task(
    bind=True,
    base=BillingTask,
    lock_key="tenant:<tenant_id>:billing",
    # Whoever repeats a payment that is done gets its result, and doesn't run.
    idempotency_key="invoice:<invoice_id>",
    lock_ttl=LEASE_TTL,
    miss_policy=policies.Retry(min_delay=0.2, max_delay=1),
    # Somebody wrote between our read and our write. Our token is the newest: read again.
    autoretry_for=(RowChanged,),
    default_retry_delay=1,
    # The default stops a run that has lost its lease. Here it may go on to its
    # write, so that you see the database refuse it: the last line of defence.
    lost_policy="flag",
)
def charge_tenant(self: Task, tenant_id: int, invoice_id: int, *, fencing_token: int) -> dict[str, Any]:
    """Charge a tenant's invoice, unless it is paid."""
    return charge(ledger(fenced=True), tenant_id, invoice_id, run_of(self, fencing_token))


@task_skipped.connect(sender=charge_tenant)
def note_answer(sender: Task, record: Any, reason: str, **_: Any) -> None:
    """Tell the journal that a repeated payment was answered from its record, without running."""
    if reason == "already_done":
        run = run_of(sender)
        ledger(fenced=True).note("answered", sender.request.args[0], run, receipt=record["receipt"])


@app.task(bind=True)
def charge_tenant_unfenced(self: Task, tenant_id: int, invoice_id: int) -> dict[str, Any]:
    """Do the same as an ordinary Celery task."""
    return charge(ledger(fenced=False), tenant_id, invoice_id, run_of(self))


def charge(books: Ledger, tenant_id: int, invoice_id: int, run: Run) -> dict[str, Any]:
    """Read, let the payment provider take its time, write: what every billing job does."""
    try:
        bill = books.begin(tenant_id, invoice_id, run)
        if not bill.is_paid:
            time.sleep(bill.invoice.seconds_to_charge)
            books.settle(bill, run)
        return bill.receipt()
    except StaleToken:
        books.note("refused", tenant_id, run)
        raise


def run_of(task: Task, token: int | None = None) -> Run:
    """Which execution this is."""
    worker = str(task.request.hostname or "here").partition("@")[0]
    return Run(task_id=str(task.request.id), who=worker, pid=os.getpid(), token=token)


@cache
def ledger(*, fenced: bool) -> Ledger:
    """This process's own connection to the books, made after the worker has forked."""
    return Ledger(config.database_url, fenced=fenced)
