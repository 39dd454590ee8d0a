"""From a thread of our own into the code of greenlets: each library in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from celery_fence.locking.green import call, hub_here, teller_here

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()\nimport gevent\nspawn = gevent.spawn",
    "eventlet": "import eventlet; eventlet.monkey_patch()\nspawn = eventlet.spawn",
}
BEGIN = """
import logging, sys, threading, time
from celery_fence.locking.green import hub_here, teller_here
from celery_fence.locking.native import start_thread, thread_id, new_lock
home = thread_id()

def until(condition):
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
"""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def run(library, code):
    pytest.importorskip(library)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PATCHES[library] + BEGIN + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_where_threads_are_threads_it_is_a_plain_call():
    assert hub_here() is None
    assert teller_here() is call


@pytest.mark.parametrize("library", PATCHES)
def test_what_another_thread_tells_is_told_in_a_greenlet_of_the_same_thread(library):
    lines = run(
        library,
        """
        told = []
        def body():
            tell = teller_here()
            start_thread(lambda: tell(lambda: (time.sleep(0.01), told.append(thread_id() == home))))
            until(lambda: told)
        spawn(body)
        until(lambda: told)
        print(told[0])
        """,
    )
    assert lines == ["True"]


@pytest.mark.parametrize("library", PATCHES)
def test_in_its_own_thread_it_is_told_at_once(library):
    lines = run(
        library,
        """
        told = []
        def body():
            teller_here()(told.append, 1)
            print(told)
        spawn(body)
        until(lambda: told)
        """,
    )
    assert lines == ["[1]"]


@pytest.mark.parametrize("library", PATCHES)
def test_the_main_line_of_a_patched_program_is_reached_too(library):
    lines = run(
        library,
        """
        told = []
        tell = teller_here()
        start_thread(lambda: tell(lambda: told.append(thread_id() == home)))
        until(lambda: told)
        print(told[0])
        """,
    )
    assert lines == ["True"]


@pytest.mark.parametrize("library", PATCHES)
def test_many_threads_and_greenlets_that_tell_at_once_hang_nothing(library):
    """Each call logs, so each wants the lock that all others want."""
    lines = run(
        library,
        """
        logging.basicConfig(level="INFO", stream=sys.stderr)
        told = []
        def log(name):
            logging.info("%s tells", name)
            told.append(name)
        def body():
            tell = teller_here()
            hub = hub_here()
            for number in range(20):
                start_thread(lambda: [tell(log, "thread") for _ in range(20)])
                log("greenlet")
                hub.soon(told.append, "hub")
                time.sleep(0.001)
        spawn(body)
        until(lambda: len(told) == 440)
        print(told.count("thread"), told.count("greenlet"), told.count("hub"))
        """,
    )
    assert lines == ["400", "20", "20"]


def test_eventlets_listener_ends_when_nobody_can_call_it_any_more():
    lines = run(
        "eventlet",
        """
        import gc
        from celery_fence.locking import green
        green.LINGER = 0.05
        closed = []
        close = green.Calls.close
        green.Calls.close = lambda calls: (close(calls), closed.append(True))
        listens, listen = [], green._has_been_called
        green._has_been_called = lambda calls: listens.append(calls) or listen(calls)
        hub = hub_here()
        until(lambda: len(listens) > 3)
        print(len(closed))
        del hub
        gc.collect()
        until(lambda: closed)
        print(len(closed))
        """,
    )
    assert lines == ["0", "1"]


def test_a_hub_that_merely_exists_is_not_told():
    """Gevent is imported and unpatched, as in a prefork worker of an app that uses it elsewhere."""
    pytest.importorskip("gevent")
    code = (
        "import gevent; gevent.get_hub()\nfrom celery_fence.locking.green import hub_here\nprint(hub_here())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.split() == ["None"], done.stderr


@pytest.mark.parametrize("library", PATCHES)
def test_a_thread_that_a_process_with_greenlets_started_is_a_thread(library):
    lines = run(
        library,
        """
        found = []
        start_thread(lambda: found.append(hub_here()))
        until(lambda: found)
        print(found[0])
        """,
    )
    assert lines == ["None"]


@pytest.mark.parametrize("library", PATCHES)
def test_a_greenlet_that_is_killed_as_it_tells_of_its_loss_has_it_told_by_the_heartbeat(library):
    lines = run(
        library,
        """
        from celery_fence.locking.clock import steady_clock
        from celery_fence.locking.heartbeat import process_heartbeat
        from celery_fence.locking.locker import Locker, Terms
        from celery_fence.locking.store import Claim
        from celery_fence.stores.memory import MemoryStore

        store, told, hooks = MemoryStore("killed"), [], []
        locker = Locker(store, store, told.append)

        def hook(lease):
            hooks.append(thread_id() == home)
            if len(hooks) == 1:
                time.sleep(60)

        def body():
            claim = Claim("job:1", "me", 1.5)
            lease = locker.acquire(claim, source=None, terms=Terms(), into=lambda _: None, on_lost=hook)
            lease.lose("taken")

        killed = spawn(body)
        until(lambda: hooks)
        killed.kill()
        until(lambda: not process_heartbeat().watching)
        print(hooks, [type(event).__name__ for event in told])
        """,
    )
    assert " ".join(lines) == "[True, True] ['Acquired', 'Lost']"
