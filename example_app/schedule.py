"""
The nightly run: ``python -m example_app.schedule`` sends one message for each tenant.

Run it from cron or beat. Two of them at once is the accident that the demo is about.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Sequence

from celery import Task

from example_app.celery import config
from example_app.config import LEASE_TTL
from example_app.ledger import Ledger, Run
from example_app.models import Invoice
from example_app.tasks import charge_tenant, charge_tenant_unfenced

SLOW_SECONDS = LEASE_TTL * 1.5


def main() -> None:
    """Publish the run."""
    options = _options()
    ledger = Ledger(config.database_url)
    ledger.open(options.tenants, slow_seconds=SLOW_SECONDS)
    if options.wait:
        print("ready", flush=True)
        sys.stdin.readline()
    task = charge_tenant_unfenced if options.unfenced else charge_tenant
    invoices = ledger.invoices(options.tenant)
    publish(task, ledger, invoices, scheduler=options.name, per_second=options.per_second)


def publish(
    task: Task, ledger: Ledger, invoices: Sequence[Invoice], *, scheduler: str, per_second: float
) -> None:
    """Send one message for each invoice, spread evenly over time so that workers can keep up."""
    began = time.monotonic()
    for place, invoice in enumerate(invoices):
        time.sleep(max(0.0, began + place / per_second - time.monotonic()))
        run = Run(task_id=str(uuid.uuid4()), who=scheduler, pid=os.getpid())
        ledger.note("published", invoice.tenant_id, run)
        task.apply_async((invoice.tenant_id, invoice.id), task_id=run.task_id)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m example_app.schedule", description="Send the nightly run.")
    add = parser.add_argument
    add("--name", default="scheduler", help="who it is, for the journal")
    add("--tenants", type=int, default=120, help="how many tenants a new ledger gets (default: 120)")
    add("--tenant", type=int, help="send only the message of this one, for example once more")
    add("--per-second", type=float, default=50, help="messages a second (default: 50)")
    add("--unfenced", action="store_true", help="send the ordinary task instead of the fenced one")
    add("--wait", action="store_true", help='say "ready" and wait for a line on standard input')
    return parser.parse_args()


if __name__ == "__main__":
    main()
