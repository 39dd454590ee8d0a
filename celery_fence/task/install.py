"""
What celery-fence keeps on an app, and what it connects to it, once.

State hangs on the app, never on a module, so two apps in one process don't share
stores. Nothing is opened here: a store connects when it is first asked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.signals import before_task_publish

from celery_fence.locking.events import Emitter
from celery_fence.locking.locker import Locker, Terms
from celery_fence.observers import signals as signal_observer
from celery_fence.observers.logs import Log
from celery_fence.observers.tally import Tally
from celery_fence.stores import from_url
from celery_fence.task.notes import stamp_delivery
from celery_fence.task.settings import FenceSettings

if TYPE_CHECKING:
    from celery_fence.locking.store import Store
    from celery_fence.task.options import TaskOptions

SHORTEST_TIMEOUT = 0.1
LONGEST_TIMEOUT = 5.0


def store_timeout(ttl: float) -> float:
    """
    How long one try of a store call may take, in seconds: an eighth of the TTL, 0.1 to 5.

    With the store's own repeats an acquire still leaves more than half of its trust.
    """
    return min(max(ttl / 8, SHORTEST_TIMEOUT), LONGEST_TIMEOUT)


@dataclass(frozen=True, slots=True)
class _Address:
    url: str
    prefix: str
    counter_retention: float
    timeout: float
    pid: int


class Runtime:
    """The stores, lockers and observers of one app, in this process."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lockers: dict[_Address, Locker] = {}
        self.tally = Tally()
        self.emit = Emitter(self.tally, Log(), signal_observer.send)

    def store(self, ttl: float) -> Store:
        """The store of the app's settings, with time-outs for leases of *ttl* seconds."""
        return self.locker(ttl).store

    def locker(self, ttl: float) -> Locker:
        """Who takes and keeps leases of *ttl* seconds; one for each time-out, made at first use."""
        settings = FenceSettings.of(self._app)
        address = _Address(
            settings.url, settings.prefix, settings.counter_retention, store_timeout(ttl), os.getpid()
        )
        known = self._lockers.get(address)
        return known or self._lockers.setdefault(address, self._new_locker(address))

    def close(self) -> None:
        """Close every connection to a store; the next call connects again."""
        for locker in self._lockers.values():
            locker.close()
        self._lockers.clear()

    def _new_locker(self, address: _Address) -> Locker:
        store = from_url(
            address.url,
            prefix=address.prefix,
            timeout=address.timeout,
            counter_retention=address.counter_retention,
        )
        return Locker(store, store.for_heartbeat(), self.emit, place=(address.url, address.prefix))


def terms_of(options: TaskOptions) -> Terms:
    """How the leases of a task are to be kept."""
    return Terms(renew_fraction=options.renew_fraction, max_hold=options.max_hold)


def runtime(app: Any) -> Runtime:
    """What celery-fence keeps on *app*; made at first use."""
    found: Runtime = app.__dict__.get("_fence_runtime") or app.__dict__.setdefault(
        "_fence_runtime", Runtime(app)
    )
    return found


def install(app: Any) -> None:
    """Connect celery-fence to *app*: its worker step, and the net under each run. Doing it again changes nothing."""
    from celery_fence.task import epilogue
    from celery_fence.task.worker import FenceStep

    app.steps["worker"].add(FenceStep)
    app.__dict__["_fence_installed"] = True
    epilogue.connect()


def is_installed(app: Any) -> bool:
    """Whether a fenced task has been bound to *app*."""
    return bool(app.__dict__.get("_fence_installed"))


def stamp_deliveries_of(name: str) -> None:
    """Give each message for the task *name* a delivery id when this process publishes it."""
    before_task_publish.connect(
        stamp_delivery, sender=name, weak=False, dispatch_uid=f"celery_fence.delivery.{name}"
    )
