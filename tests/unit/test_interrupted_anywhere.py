"""
A soft time limit strikes at any line, also at ours.

Celery raises it from a signal handler, so between any two lines. Here a trace
function raises it at each line that a run goes through, one line per run, and each
time nothing may be left: no lease that is renewed for ever, and none in the store once
what is owed to it is paid. A run whose lease was asked for comes again, and one whose
lease was given back keeps its outcome.
"""

from __future__ import annotations

import contextvars
import gc
import itertools
import linecache
import sys
import threading
import traceback
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from celery.app.trace import build_tracer
from celery.exceptions import Retry, SoftTimeLimitExceeded
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import celery_fence
from celery_fence import FencedTask, StoreUnavailable, hold
from celery_fence.locking import duty
from celery_fence.locking import heartbeat as heartbeat_module
from celery_fence.locking.events import Lost
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.loss import Loss
from celery_fence.locking.owed import Owed
from celery_fence.locking.store import Claim
from celery_fence.stores import from_url
from celery_fence.stores.memory import MemoryStore

ROOT = Path(celery_fence.__file__).parent
OURS = {
    str(ROOT / path)
    for path in (
        "locking/locker.py",
        "locking/record_claims.py",
        "locking/lease.py",
        "locking/loss.py",
        "locking/heartbeat.py",
        "locking/agenda.py",
        "locking/renewers.py",
        "locking/beat.py",
        "locking/duty.py",
        "locking/current.py",
        "task/asking.py",
        "task/hold.py",
        "task/fenced.py",
        "task/taking.py",
        "task/run.py",
        "task/delivery.py",
        "task/injection.py",
        "task/interrupt.py",
        "task/stopping/__init__.py",
        "task/stopping/signals.py",
        "fencing/sqlalchemy/transactions.py",
    )
}


class Strike:
    """Raises at the line event of number *at* in our files; counts them all."""

    def __init__(self, at: int | None = None):
        self.at = at
        self.lines = 0
        self.where = ""
        self.within = set()
        """The functions that were being called when it struck."""

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename not in OURS:
            return None
        return self.watch_lines()

    def watch_lines(self):
        seen = set()

        def line(frame, event, arg):
            number = frame.f_lineno
            if event == "line" and not self.is_out_of_reach(frame, seen):
                seen.add(number)
                self.lines += 1
                if self.lines - 1 == self.at:
                    self.where = f"{frame.f_code.co_filename}:{number} {frame.f_code.co_name}"
                    self.within = {each.f_code for each, _ in traceback.walk_stack(frame)}
                    raise SoftTimeLimitExceeded
            return line

        return line

    @staticmethod
    def is_out_of_reach(frame, seen):
        """
        Python looks for signals only after a call, at a function's start and where a loop goes back.

        So none strikes at a `try:`, which does nothing, nor where a `with` statement is visited
        again on the way out, before its end is called.
        """
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return source == "try:" or (frame.f_lineno in seen and source.startswith("with "))

    def during(self, function):
        def traced():
            before = sys.gettrace()
            sys.settrace(self)
            try:
                return function()
            finally:
                sys.settrace(before)

        return contextvars.copy_context().run(traced)


@pytest.fixture(autouse=True)
def heartbeats(monkeypatch):
    """A heartbeat of the process's own for each test, without its thread: the lines of `watch` are struck too."""
    kept = []
    monkeypatch.setattr(heartbeat_module, "_process_heartbeat", kept)
    monkeypatch.setattr(duty, "start_thread", lambda function: None)
    return kept


def a_block(app):
    def run():
        with hold("job:k", app=app):
            pass

    return run


def a_block_until_the_commit(app):
    engine = create_engine("sqlite://")

    def run():
        with Session(engine) as session, session.begin():
            session.execute(text("SELECT 1"))
            with hold("job:k", app=app, until_commit=session):
                pass

    return run


def test_each_file_that_is_to_be_struck_is_there():
    assert [path for path in OURS if not Path(path).is_file()] == []


def collect_garbage():
    """A session that was interrupted while it closed takes its leases along when it goes, in a thread."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "celery-fence-release":
            thread.join(10)


def a_direct_call(app):
    @app.task(base=FencedTask, lock_key="job:<key>", name="called directly")
    def body(key, *, fencing_token):
        return fencing_token

    return lambda: body("k")


def an_eager_run(app):
    @app.task(base=FencedTask, bind=True, lock_key="job:<key>", name="eager")
    def body(self, key, *, fencing_token):
        self.lease.check()
        return fencing_token

    return lambda: body.apply(("k",)).get()


def a_run_in_a_worker(app):
    @app.task(base=FencedTask, bind=True, lock_key="job:<key>", name="in a worker")
    def body(self, key, *, fencing_token):
        self.lease.check()
        return fencing_token

    app.finalize()
    trace = build_tracer(body.name, body, app=app)

    def run():
        task_id = uuid.uuid4().hex
        route = {"exchange": "", "routing_key": app.conf.task_default_queue}
        request = {"id": task_id, "hostname": "here", "delivery_info": route, "headers": {}, "retries": 0}
        value = trace(task_id, ("k",), {}, request).retval
        if isinstance(value, BaseException) or type(value).__name__ == "ExceptionInfo":
            error = getattr(value, "exception", value)
            # As Celery wraps what strikes while it stores the result.
            raise error if isinstance(error, Retry) else getattr(error, "exc", error)
        return value

    return run


def pay_what_is_owed(heartbeat):
    """As its thread would."""
    with heartbeat._agenda.lock:
        entries = heartbeat._agenda.notebook.take(float("inf"))
        heartbeat._agenda.notebook.settle(entries, [], 0.0)
    for store, due, _ in entries:
        if isinstance(due, Owed):
            due.pay(store)


# One strike hits the end of a session that was forgotten, where Python can only tell of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "kind", [a_block, a_block_until_the_commit, a_direct_call, an_eager_run, a_run_in_a_worker]
)
def test_a_soft_time_limit_at_any_line_leaves_no_lease(app, heartbeats, kind):
    run = kind(app)
    run()
    uninterrupted = Strike()
    uninterrupted.during(run)
    store = from_url(app.conf.fence_url)
    left, struck = [], 0
    assert uninterrupted.lines > 40

    for at in range(uninterrupted.lines):
        strike = Strike(at)
        with suppress(SoftTimeLimitExceeded, StoreUnavailable, Retry):
            strike.during(run)
        struck += bool(strike.where)
        if heartbeats[0].watching or store.holder("job:k"):
            collect_garbage()
        pay_what_is_owed(heartbeats[0])
        if heartbeats[0].watching or store.holder("job:k"):
            left.append((strike.where, heartbeats[0].watching, store.holder("job:k") is not None))
            store.force_release("job:k")
            heartbeats[0]._reset()

    assert left == []
    assert struck > 0.8 * uninterrupted.lines


def test_after_any_interruption_the_next_run_is_as_ever(app, heartbeats):
    run = a_run_in_a_worker(app)
    uninterrupted = Strike()
    uninterrupted.during(run)

    for at in range(0, uninterrupted.lines, 5):
        with suppress(SoftTimeLimitExceeded, Retry):  # it may strike in the net, too, which Celery guards
            Strike(at).during(run)
        assert contextvars.copy_context().run(run) > 0


def test_a_soft_time_limit_that_strikes_while_the_store_is_asked_decides_nothing(app, heartbeats):
    """Before the body it is an outage of the store, and after it the value of the body stands."""
    run = a_run_in_a_worker(app)
    uninterrupted = Strike()
    uninterrupted.during(run)
    outcomes = {Locker.acquire: set(), Locker.release: set()}

    for at in range(uninterrupted.lines):
        strike, outcome = Strike(at), None
        try:
            outcome = type(strike.during(run))
        except Retry as again:
            outcome = type(again.exc)
        except SoftTimeLimitExceeded as error:
            outcome = type(error)
        pay_what_is_owed(heartbeats[0])
        for call, seen in outcomes.items():
            if call.__code__ in strike.within:
                seen.add(outcome)

    assert outcomes == {Locker.acquire: {StoreUnavailable}, Locker.release: {int}}


def asked_by_the_body(lease, heartbeat, clock):
    clock.advance(lease.ttl)
    return lambda: lease.lost


def found_by_the_heartbeat(lease, heartbeat, clock):
    clock.advance(lease.ttl)
    return heartbeat.beat


def told_by_the_store(lease, heartbeat, clock):
    lease.store.force_release(lease.key)
    clock.advance(lease.ttl / 2)
    return heartbeat.beat


@pytest.mark.parametrize("notice", [asked_by_the_body, found_by_the_heartbeat, told_by_the_store])
def test_a_loss_is_told_whichever_line_is_struck_and_twice_only_where_the_telling_was(
    heartbeat, clock, notice
):
    """The run is asked to stop, and the observers are told, by the heartbeat where not by who noticed."""
    twice = 0
    for at in itertools.count():
        store, told, asked_to_stop = MemoryStore(f"loss-{notice.__name__}-{at}", clock=clock), [], []
        locker = Locker(store, store, told.append, heartbeat=heartbeat, clock=clock)
        lease = locker.acquire(
            Claim("job:1", "me", 30.0),
            source=None,
            terms=Terms(),
            into=lambda _: None,
            on_lost=asked_to_stop.append,
        )
        told.clear()
        noticed, strike = notice(lease, heartbeat, clock), Strike(at)
        with suppress(SoftTimeLimitExceeded):
            strike.during(noticed)
        go_on_beating(heartbeat, clock)

        heard = len([event for event in told if isinstance(event, Lost)])
        assert {heard, len(asked_to_stop)} <= {1, 2}, strike.where
        assert heard + len(asked_to_stop) <= (3 if Loss._go_on.__code__ in strike.within else 2), strike.where
        twice += heard + len(asked_to_stop) == 3
        if not strike.where:
            break
    assert at > 20
    assert twice


def go_on_beating(heartbeat, clock):
    """As its threads would, until it has nothing more to renew."""
    for _ in range(30):
        if not heartbeat.watching:
            return
        heartbeat._take_back()  # as the thread on duty, after it was struck
        clock.advance(3)
        heartbeat.beat()
    pytest.fail("a lost lease stays with the heartbeat")
