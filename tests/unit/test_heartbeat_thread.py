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

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import duty, renewer
from celery_fence.locking import heartbeat as module
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.lease import State
from celery_fence.locking.store import Kept, Note

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
    monkeypatch.setattr(renewer, "IDLE", 0.3)
    heartbeat = Heartbeat()
    yield heartbeat
    for lease in tuple(heartbeat._agenda.leases):
        heartbeat.forget(lease)
    until(lambda: not heartbeat.running)
    until(lambda: not any(renewer.running for renewer in heartbeat._renewers._by_store.values()))


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
    start = duty.start_thread
    monkeypatch.setattr(duty, "start_thread", lambda function: (started.append(1), start(function)))
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
    until(lambda: heartbeat._agenda.wakes_at > heartbeat._clock() + 10)  # it sleeps
    short = keep(ttl=0.6)
    until(lambda: renewed)

    assert not short.lost
    monkeypatch.setattr(module, "LINGER", 0.1)
    heartbeat._agenda.bell.ring()


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
        full.setattr(duty, "start_thread", none_left)
        with pytest.raises(RuntimeError, match="new thread"):
            heartbeat.watch(make_lease(0.6), renewed.append)
    assert not heartbeat.running
    heartbeat.watch(make_lease(0.6), renewed.append)

    until(lambda: renewed)


def test_a_start_that_was_interrupted_leaves_no_second_heartbeat(heartbeat, make_lease, monkeypatch, renewed):
    """A soft time limit between the start of the thread and the note of it."""
    ended = threading.Event()

    def starts_and_is_interrupted(function):
        start(functools.partial(ran, function))
        raise KeyboardInterrupt

    def ran(function):
        function()
        ended.set()

    start = duty.start_thread
    with monkeypatch.context() as interrupted:
        interrupted.setattr(duty, "start_thread", starts_and_is_interrupted)
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
from celery_fence.observers.logs import Log
from celery_fence.stores import from_url

logging.basicConfig(level="DEBUG", stream=sys.stderr)
renewals = []
store = from_url("memory://thread")
emit = Emitter(Log(), lambda event: renewals.append(type(event).__name__))

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
lock = process_heartbeat()._agenda.lock
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
    lease = take("busy", ttl=0.8)
    end = time.monotonic() + 5
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


class HangingStore:
    """A store that keeps its caller until the test lets it go; it answers then, or breaks."""

    description = "hanging://"

    def __init__(self):
        self.asked = []
        self.noted = []
        self.goes_on = threading.Event()
        self.breaks = None

    def renew(self, renewals):
        self.asked.append([each.claim.key for each in renewals])
        assert self.goes_on.wait(DEADLINE)
        if self.breaks is not None:
            raise self.breaks
        return [Kept()] * len(renewals)

    def note(self, notes):
        self.noted += notes

    def close(self):
        self.closed = True


@pytest.fixture
def hanging():
    store = HangingStore()
    yield store
    store.goes_on.set()


class TestAStoreThatHangs:
    def test_keeps_no_lease_of_another_store_from_being_renewed(self, heartbeat, make_lease, hanging):
        told = []
        heartbeat.watch(make_lease(60, renewals=hanging, renew_fraction=0.001), told.append)
        until(lambda: hanging.asked)
        other = make_lease(0.6, key="of the other store")
        heartbeat.watch(other, told.append)
        until(lambda: len(told) >= 6)

        assert other.held_for > 0.6
        assert not other.lost
        assert {event.key for event in told} == {"of the other store"}

    def test_doesn_t_delay_the_news_that_trust_in_its_own_leases_is_over(
        self, heartbeat, make_lease, hanging, renewed
    ):
        heartbeat.watch(make_lease(0.6, renewals=hanging, key="k"), renewed.append)
        until(lambda: make_lease.losses)

        assert make_lease.losses == [("k", "expired")]
        assert heartbeat.watching == 0
        assert not hanging.goes_on.is_set()

    def test_has_the_heartbeat_wake_up_when_trust_in_its_leases_ends(
        self, heartbeat, make_lease, hanging, renewed, monkeypatch
    ):
        monkeypatch.setattr(module, "LINGER", 60)
        lease = make_lease(0.6, renewals=hanging)
        heartbeat.watch(lease, renewed.append)
        until(lambda: lease.state is State.LOST)

        monkeypatch.setattr(module, "LINGER", 0.1)
        heartbeat._agenda.bell.ring()

    @pytest.mark.parametrize("late", [None, StoreUnavailable("at last"), ZeroDivisionError("a bug")])
    def test_an_answer_that_comes_after_the_loss_changes_nothing(
        self, heartbeat, make_lease, hanging, renewed, late
    ):
        lease = make_lease(0.6, renewals=hanging)
        heartbeat.watch(lease, renewed.append)
        until(lambda: lease.state is State.LOST)
        hanging.breaks = late
        hanging.goes_on.set()
        until(lambda: not heartbeat.running)
        until(lambda: not any(renewer.running for renewer in heartbeat._renewers._by_store.values()))

        assert (renewed, lease.state, len(hanging.asked)) == ([], State.LOST, 1)

    def test_is_asked_once_for_all_that_became_due_meanwhile(self, heartbeat, make_lease, hanging, renewed):
        heartbeat.watch(make_lease(60, renewals=hanging, renew_fraction=0.001), renewed.append)
        until(lambda: hanging.asked)
        for number, ttl in enumerate((80, 40, 60)):
            waiting = make_lease(ttl, key=f"{number}", renewals=hanging, renew_fraction=0.001)
            heartbeat.watch(waiting, renewed.append)
            until(lambda lease=waiting: lease in heartbeat._agenda.leases._asked_for)
        hanging.goes_on.set()
        until(lambda: len(renewed) >= 4)

        assert hanging.asked[1] == ["1", "2", "0"]

    def test_keeps_nobody_from_being_watched_and_forgotten(self, heartbeat, make_lease, hanging, renewed):
        lease = make_lease(60, renewals=hanging, renew_fraction=0.001)
        heartbeat.watch(lease, renewed.append)
        until(lambda: hanging.asked)
        heartbeat.forget(lease)
        lease.end()
        until(lambda: not heartbeat.running)
        hanging.goes_on.set()
        again = make_lease(60, renewals=hanging, renew_fraction=0.001)
        heartbeat.watch(again, renewed.append)
        until(lambda: renewed)

        assert {event.lease for event in renewed} == {again}

    def test_has_its_notes_written_when_it_goes_on_and_those_of_another_store_at_once(
        self, heartbeat, make_lease, hanging
    ):
        heartbeat.watch(make_lease(60, renewals=hanging, renew_fraction=0.001), lambda event: None)
        until(lambda: hanging.asked)
        other = HangingStore()
        first, second = (Note("k", delivery, "returned", 60.0) for delivery in ("d1", "d2"))
        heartbeat.note(hanging, first)
        heartbeat.note(other, second)
        until(lambda: other.noted == [second])
        assert (hanging.noted, heartbeat.noting) == ([], 1)
        hanging.goes_on.set()
        until(lambda: not heartbeat.noting)

        assert hanging.noted == [first]


def test_a_store_that_nothing_is_asked_of_for_a_while_has_its_connection_closed(
    heartbeat, make_lease, hanging, renewed
):
    hanging.goes_on.set()
    lease = make_lease(0.6, renewals=hanging)
    heartbeat.watch(lease, renewed.append)
    until(lambda: renewed)
    assert not hasattr(hanging, "closed")
    heartbeat.forget(lease)

    until(lambda: hasattr(hanging, "closed"))
    until(lambda: not heartbeat._renewers.of(hanging).running)


def test_a_machine_without_a_thread_for_a_renewer_asks_again_when_it_has_one(
    heartbeat, make_lease, monkeypatch, renewed, caplog
):
    refused = []

    def none_left(function):
        refused.append(function)
        raise RuntimeError("can't start new thread")

    heartbeat.watch(make_lease(60), renewed.append)  # so the heartbeat's own thread runs
    with monkeypatch.context() as full:
        full.setattr(duty, "start_thread", none_left)
        heartbeat.watch(make_lease(9, renew_fraction=0.01), renewed.append)
        until(lambda: refused)
    until(lambda: renewed)

    assert "can't start new thread" in caplog.text
