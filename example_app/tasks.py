"""
The nightly run's task: charge one tenant. Once with a fence, once without.

What to copy into your own app is `charge_tenant` and the one conditional
statement in `example_app.ledger`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from celery import Task

from celery_fence import FencedTask, policies
from example_app.celery import app, config
from example_app.config import LEASE_TTL
from example_app.ledger import Ledger, Run


class BillingTask(FencedTask):
    """A fenced task that tells the journal when its key was held, for the demo's timeline."""

    abstract = True

    def on_miss(self, miss: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Somebody else is charging this tenant; the miss policy sends the message again a little later."""
        super().on_miss(miss, args, kwargs)
        ledger().note("missed", args[0], run_of(self))


@app.task(
    bind=True,
    base=BillingTask,
    lock_key="tenant:<tenant_id>:billing",
    lock_ttl=LEASE_TTL,
    miss_policy=policies.Retry(min_delay=0.2, max_delay=1),
    # The default stops a run that has lost its lease. Here it may go on to its
    # write, so that you see the ledger refuse it: the last line of defence.
    lost_policy="flag",
)
def charge_tenant(self: Task, tenant_id: int, *, fencing_token: int | None) -> str:
    """Charge a tenant's invoice, unless it is paid."""
    return charge(tenant_id, run_of(self, fencing_token))


@app.task(bind=True)
def charge_tenant_unfenced(self: Task, tenant_id: int) -> str:
    """Do the same as an ordinary Celery task."""
    return charge(tenant_id, run_of(self))


def charge(tenant_id: int, run: Run) -> str:
    """Read, let the payment provider take its time, write: what every billing job does."""
    bill = ledger().begin(tenant_id, run)
    if bill is None:
        return "already paid"
    time.sleep(bill.seconds_to_charge)
    ledger().settle(bill, run)
    return "charged"


def run_of(task: Task, token: int | None = None) -> Run:
    """Which execution this is."""
    worker = str(task.request.hostname or "here").partition("@")[0]
    return Run(task_id=str(task.request.id), who=worker, pid=os.getpid(), token=token)


@cache
def ledger() -> Ledger:
    """This process's own connection to the books, made after the worker has forked."""
    return Ledger(config.database_url)
