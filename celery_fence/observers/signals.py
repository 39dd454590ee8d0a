"""Events as Celery-style signals."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from celery_fence import signals
from celery_fence.locking import events

if TYPE_CHECKING:
    from celery.utils.dispatch import Signal

SIGNALS: dict[type[events.Event], Signal] = {
    events.Acquired: signals.lease_acquired,
    events.Missed: signals.lease_missed,
    events.Renewed: signals.lease_renewed,
    events.RenewalFailed: signals.lease_renewal_failed,
    events.Lost: signals.lease_lost,
    events.ReleasedLease: signals.lease_released,
    events.Skipped: signals.task_skipped,
    events.StaleWriteRefused: signals.stale_write_refused,
    events.DeadLetteredMessage: signals.task_dead_lettered,
}


def send(event: events.Event) -> None:
    """Send the signal of *event*, if it has one and anybody listens."""
    signal = SIGNALS.get(type(event))
    if signal is not None and signal.receivers:
        facts = {field.name: getattr(event, field.name) for field in fields(event) if field.name != "source"}
        signal.send(sender=event.source, **facts)
