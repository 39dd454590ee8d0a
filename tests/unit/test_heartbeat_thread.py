"""The heartbeat's own thread: started when needed, gone when not, real also under greenlets, alive after a fork."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from celery_fence.locking import heartbeat as module
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.store import Kept

DEADLINE = 15.0


def until(condition, seconds=DEADLINE):
    """Wait for *condition*, looking often; a failure when it doesn't come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


@pytest.fixture
def clock():
    return steady_clock()


@pytest.fixture
def heartbeat(monkeypatch):
    monkeypatch.setattr(module, "LINGER", 0.1)
    heartbeat = Heartbeat()
    yield heartbeat
    for lease in tuple(heartbeat._leases):
        heartbeat.forget(lease)
    until(lambda: not heartbeat.running)


@pytest.fixture
def renewed():
    return []


@pytest.fixture
def keep(heartbeat, make_lease, renewed):
    def keep(ttl=0.6):
        lease = make_lease(ttl)
        heartbeat.watch(lease, renewed.append)
        return lease

    return keep


def test_no_thread_before_the_first_lease(heartbeat):
    assert not heartbeat.running


def test_a_lease_is_kept_far_beyond_its_ttl(keep, heartbeat, renewed):
    lease = keep(ttl=0.4)
    until(lambda: len(renewed) >= 6)

    assert lease.held_for > 0.4
    assert not lease.lost


def test_the_thread_ends_when_there_is_nothing_left_and_starts_again(keep, heartbeat, renewed):
    lease = keep()
    assert heartbeat.running
    heartbeat.forget(lease)
    until(lambda: not heartbeat.running)
    keep()

    assert heartbeat.running
    until(lambda: renewed)


def test_many_threads_start_one_heartbeat(keep, heartbeat, monkeypatch):
    started = []
    start = module.start_thread
    monkeypatch.setattr(module, "start_thread", lambda function: (started.append(1), start(function)))
    threads = [threading.Thread(target=keep) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)

    assert heartbeat.watching == 20
    assert len(started) == 1


def test_a_short_lease_is_not_kept_waiting_by_the_sleep_for_a_long_one(keep, heartbeat, renewed, monkeypatch):
    monkeypatch.setattr(module, "LINGER", 60)
    keep(ttl=600)
    until(lambda: heartbeat._wakes_at > heartbeat._clock() + 10)  # it sleeps
    short = keep(ttl=0.6)
    until(lambda: renewed)

    assert not short.lost
    monkeypatch.setattr(module, "LINGER", 0.1)
    heartbeat._bell.ring()


def test_it_survives_a_store_and_a_listener_that_break(heartbeat, make_lease, store, caplog):
    lease, told = make_lease(0.8), []

    def breaks_at_first(event):
        told.append(event)
        if len(told) == 1:
            raise SystemExit("a hook that exits")

    store.renewal = ZeroDivisionError("a bug")
    heartbeat.watch(lease, breaks_at_first)
    until(lambda: told)
    store.renewal = Kept()
    until(lambda: len(told) > 3)

    assert heartbeat.running
    assert not lease.lost
    assert "a hook that exits" in caplog.text


def test_a_machine_without_a_thread_to_spare_spoils_only_that_lease(
    heartbeat, make_lease, monkeypatch, renewed
):
    def none_left(function):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(module, "start_thread", none_left)
        with pytest.raises(RuntimeError, match="new thread"):
            heartbeat.watch(make_lease(0.6), renewed.append)
    assert not heartbeat.running
    heartbeat.watch(make_lease(0.6), renewed.append)

    until(lambda: renewed)


def test_a_start_that_was_interrupted_leaves_no_second_heartbeat(heartbeat, make_lease, monkeypatch, renewed):
    """A soft time limit between the start of the thread and the note of it."""
    ended = threading.Event()

    def starts_and_is_interrupted(function):
        module_start(functools.partial(ran, function))
        raise KeyboardInterrupt

    def ran(function):
        function()
        ended.set()

    module_start = module.start_thread
    with monkeypatch.context() as interrupted:
        interrupted.setattr(module, "start_thread", starts_and_is_interrupted)
        with pytest.raises(KeyboardInterrupt):
            heartbeat.watch(make_lease(0.6), renewed.append)

    assert ended.wait(DEADLINE)
    heartbeat.watch(make_lease(0.6), renewed.append)
    until(lambda: renewed)


def run(code):
    """Run *code* in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


MAKE = """
import logging, os, sys, time
from celery_fence.locking.events import Emitter
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.lease import Lease
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim
from celery_fence.observers.logs import log
from celery_fence.stores import from_url

logging.basicConfig(level="DEBUG", stream=sys.stderr)
renewals = []
store = from_url("memory://thread")
emit = Emitter(log, lambda event: renewals.append(type(event).__name__))

def take(key, ttl=0.5):
    lease = Locker(store, store, emit).acquire(
        Claim(key, os.urandom(4).hex(), ttl), source=None, terms=Terms(), into=lambda lease: None
    )
    assert isinstance(lease, Lease), lease
    return lease

def wait_for_renewals(count, clock=time.monotonic):
    end = clock() + 15
    while renewals.count("Renewed") < count:
        assert clock() < end, renewals
"""


def test_a_fork_has_a_heartbeat_of_its_own_and_keeps_none_of_its_parents_leases():
    lines = run(
        MAKE
        + """
parents = take("parents")
lock = process_heartbeat()._lock
lock.acquire()  # as some thread may have at the moment of the fork
child = os.fork()
if child:
    lock.release()
if child == 0:
    renewals.clear()
    assert not process_heartbeat().running
    assert process_heartbeat().watching == 0
    process_heartbeat().forget(parents)
    lease = take("childs")
    wait_for_renewals(3)
    print(process_heartbeat().watching, lease.lost, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
wait_for_renewals(3)
print(process_heartbeat().watching, parents.lost)
"""
    )
    assert lines == ["1 False", "1 False"]


def installed(library):
    """Skip without *library*; not by importing it, which would change this process."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"no {library} here")


PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
SPAWN = {
    "gevent": "import gevent; gevent.spawn(body).get()",
    "eventlet": "import eventlet; eventlet.spawn(body).wait()",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("library", PATCHES)
def test_a_greenlet_that_never_yields_keeps_its_lease(library):
    """The body computes: no other greenlet runs, so a heartbeat in one would starve."""
    installed(library)
    lines = run(
        PATCHES[library]
        + MAKE
        + f"""
def body():
    lease, beats, end = take("busy", ttl=0.5), set(), time.monotonic() + 15
    while len(beats) < 5:  # never yields, so observers hear of it later
        beats.add(lease.trusted_until)
        assert time.monotonic() < end, beats
    assert lease.held_for > 0.5, lease.held_for
    print(lease.lost, store.holder("busy").owner == lease.owner, flush=True)

{SPAWN[library]}
"""
    )
    assert lines == ["False True"]


@pytest.mark.parametrize("library", PATCHES)
def test_a_body_that_logs_while_the_heartbeat_logs_keeps_its_lease(library):
    """Patched, the locks of `logging` belong to a hub: a thread of the system must not wait for one."""
    installed(library)
    lines = run(
        PATCHES[library]
        + MAKE
        + f"""
def body():
    lease = take("busy", ttl=0.3)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        logging.getLogger("celery_fence").info("works")
        time.sleep(0)
    print(lease.lost, process_heartbeat().running, renewals.count("Renewed") > 10, flush=True)
    os._exit(0)

{SPAWN[library]}
"""
    )
    assert lines == ["False True True"]


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_library_that_is_imported_and_not_used_changes_nothing(library):
    installed(library)
    lines = run(
        f"import {library}"
        + MAKE
        + """
lease = take("k")
wait_for_renewals(3)
print(lease.lost)
"""
    )
    assert lines == ["False"]


def test_the_thread_keeps_no_process_alive():
    assert run(MAKE + 'take("left", ttl=600)\nprint("done")') == ["done"]
