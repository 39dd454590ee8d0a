"""A clock that stands still, a heartbeat beaten by hand, a store that obeys, and an app that stays in this process."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import uuid
from dataclasses import dataclass

import pytest
from celery import Celery
from celery.app.trace import _install_stack_protection, build_tracer, reset_worker_optimizations
from celery.signals import before_task_publish

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import duty
from celery_fence.locking.heartbeat import Heartbeat, process_heartbeat
from celery_fence.locking.lease import Lease
from celery_fence.locking.native import start_thread
from celery_fence.locking.store import Claim, Facts, Granted, Kept, Released
from celery_fence.stores import from_url
from celery_fence.task.limits import allow_short_ttls
from celery_fence.testing.clock import FakeClock


class HandBeaten(Heartbeat):
    """A heartbeat without its threads: it beats when the test says so."""

    def __init__(self, clock):
        super().__init__(clock)
        self._start = lambda: None

    def _reset(self):
        super()._reset()
        of = self._renewers.of

        def without_thread(store):
            renewer = of(store)
            renewer.renew, renewer.write = renewer._renew, renewer._write
            return renewer

        self._renewers.of = without_thread

    def pay(self) -> None:
        """Have all written and paid, as the threads would by and by."""
        self._agenda.notebook._not_before = 0.0
        self._renewers.write(self._agenda.take_notes())

    def beat(self) -> int:
        """What the thread would do at this moment; returns how many leases were due."""
        due = self._agenda.leases.take_due(self._clock())
        if due:
            self._beat(due)
        return len(due)


class ObedientStore:
    """A store that answers what the test has put on it, and remembers what it was asked."""

    description = "obedient://"

    def __init__(self):
        self.renewal = Kept()
        self.calls = []
        self.during_renewal = lambda: None

    def renew(self, renewals):
        self.calls.append([each.claim.key for each in renewals])
        self.during_renewal()
        if isinstance(self.renewal, Exception):
            raise self.renewal
        return [self.renewal] * len(renewals)

    def release(self, *_):
        return Released()

    def close(self):
        """Nothing is open."""


@pytest.fixture
def clock():
    return FakeClock(1000.0)


@pytest.fixture
def heartbeat(clock):
    return HandBeaten(clock)


@pytest.fixture
def store():
    return ObedientStore()


@pytest.fixture
def down():
    return StoreUnavailable("the store is out of reach")


@pytest.fixture
def make_lease(clock, store):
    """Leases as the locker makes them, asked for now; what they tell when they are lost lands in ``.losses``."""
    numbers = itertools.count(1)

    def make(ttl=30.0, *, key=None, **given):
        number = next(numbers)
        facts = {
            "asked_at": clock(),
            "clock": clock,
            "store": store,
            "renewals": store,
            "source": None,
            "renew_fraction": 1 / 3,
            "max_hold": None,
            "on_lost": [lambda lease, reason: make.losses.append((lease.key, reason))],
        }
        claim = Claim(key or f"job:{number}", f"owner-{number}", ttl)
        return Lease(claim, Granted(number, clock()), **{**facts, **given})

    make.losses = []
    return make


class App(Celery):
    """A Celery app whose tasks stay its own; Celery gives each decorated task to every app of the process."""

    def task(self, *args, **options):
        return super().task(*args, **{"shared": False, **options})


@pytest.fixture
def app():
    """An app whose leases, messages and results live in this process, and whose TTLs may be short."""
    name = f"unit-{uuid.uuid4().hex}"
    app = App(name, set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(fence_url=f"memory://{name}", fence_ttl=30.0, task_default_queue=name)
    app.conf.result_backend_transport_options = {
        "global_keyprefix": name
    }  # apps of a process share the memory
    allow_short_ttls(app)
    yield app
    app.close()
    assert process_heartbeat().watching == 0, "a lease was left to the heartbeat"


@pytest.fixture
def leases(app):
    """The store of the app's leases."""
    return from_url(app.conf.fence_url)


@pytest.fixture
def occupy(leases):
    """Let somebody else have a key."""

    def occupy(key, owner="somebody else", ttl=60.0, **facts):
        leases.acquire(Claim(key, owner, ttl, Facts(**facts)))

    return occupy


@dataclass(frozen=True)
class Outcome:
    state: str
    value: object


@pytest.fixture
def in_worker(app):
    """Run a task as a worker's pool does, without a worker; returns its state and its value, or its error."""

    def in_worker(task, *args, kwargs=None, **request):
        app.finalize()
        facts = {"id": uuid.uuid4().hex, "hostname": "here", "headers": {}, "retries": 0, **request}
        facts.setdefault("delivery_info", {"exchange": "", "routing_key": app.conf.task_default_queue})
        trace = build_tracer(task.name, task, app=app)
        _install_stack_protection()  # as each worker does: Task.__call__ then pushes no second request
        try:
            done = trace(facts["id"], args, kwargs or {}, facts)
        finally:
            reset_worker_optimizations(app)
        if done.info is None:
            return Outcome("SUCCESS", done.retval)
        error = done.info.retval
        return Outcome(done.info.state, getattr(error, "exc", None) or error)

    return in_worker


@pytest.fixture
def sent(app):
    """Headers and body of every message that is published."""
    sent = []

    def note(sender, headers, body, **_):
        sent.append((headers, body))

    before_task_publish.connect(note)
    yield sent
    before_task_publish.disconnect(note)


@pytest.fixture
def strike(monkeypatch):
    """
    Throw SystemExit into each thread on duty, wherever it is; returns into how many.

    One that is thrown into the clean-up of what can't be reached any more can't be raised: Python would tell the
    hook for these, in the same thread.
    """
    on_duty = set()

    def start(function):
        def run():
            on_duty.add(threading.get_ident())
            try:
                function()
            finally:
                on_duty.discard(threading.get_ident())

        start_thread(run)

    def strike():
        struck = on_duty & set(sys._current_frames())
        for ident in struck:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))
        return len(struck)

    monkeypatch.setattr(duty, "start_thread", start)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    return strike
