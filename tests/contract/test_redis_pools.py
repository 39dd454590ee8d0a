"""The store among greenlets, with the heartbeat in a thread of the operating system beside them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PATCHES = {
    "gevent": "import gevent.monkey; gevent.monkey.patch_all(); from gevent.pool import Pool",
    "eventlet": "import eventlet; eventlet.monkey_patch(); from eventlet import GreenPool as Pool",
}
JOIN = {"gevent": "join", "eventlet": "waitall"}

PROGRAM = """
import sys, time
from celery_fence.locking import native
from celery_fence.locking.store import Claim, Granted, Kept, Released, Renewal
from celery_fence.stores import from_url

store = from_url(sys.argv[1], prefix="greenlets", timeout=5)
heartbeat = store.for_heartbeat()
kept = Claim("kept", "o", 30.0)
grant = store.acquire(kept)
beats, ended, wrong = [], [], []

def beat():
    try:
        while not ended:
            beats.extend(heartbeat.renew([Renewal(kept, grant.token, grant.since)]))
    except BaseException as error:
        wrong.append(repr(error))
    ended.append("heartbeat")

def work(number):
    claim = Claim(f"k{number}", f"o{number}", 30.0)
    answer = store.acquire(claim)
    holder = store.holder(claim.key)
    if not isinstance(answer, Granted) or holder.owner != claim.owner:
        wrong.append((answer, holder))
    if store.release(claim, answer.token) != Released():
        wrong.append("not released")

native.start_thread(beat)
pool = Pool(100)
for number in range(500):
    (pool.spawn if hasattr(pool, "spawn") else pool.spawn_n)(work, number)
pool.JOIN()

# The hub is blocked, as by a C call: the heartbeat must go on.
before, deadline = len(beats), time.monotonic() + 5
while len(beats) < before + 3 and time.monotonic() < deadline:
    pass
if len(beats) < before + 3:
    wrong.append("the heartbeat starved")
ended.append("main")
while "heartbeat" not in ended and time.monotonic() < deadline + 5:
    time.sleep(0.01)
if set(map(str, beats)) != {str(Kept())}:
    wrong.append(set(map(str, beats)))
sys.exit(f"wrong: {wrong}" if wrong else 0)
"""


RENEWED_BY_ANOTHER_THREAD = """
import sys, time, uuid
from celery_fence.locking import heartbeat as module, renewer
from celery_fence.locking.heartbeat import process_heartbeat
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim
from celery_fence.stores import from_url

module.LINGER = renewer.IDLE = 0.1
store = from_url(sys.argv[1], prefix="anew", timeout=5)
beats = []

def listen(event):
    if type(event).__name__ in ("Renewed", "RenewalFailed"):
        beats.append(type(event).__name__)

locker = Locker(store, store.for_heartbeat(), listen)
renewers = process_heartbeat()._renewers._by_store

def until(fact):
    end = time.monotonic() + 15
    while not fact():
        assert time.monotonic() < end, beats
        time.sleep(0.01)

def work():
    for _ in range(3):
        claim, before = Claim("k", uuid.uuid4().hex, 0.9), len(beats)
        lease = locker.acquire(claim, source=None, terms=Terms(), into=lambda lease: None)
        until(lambda: len(beats) > before)
        locker.release(lease)
        until(lambda: not process_heartbeat().running and not any(each.running for each in renewers.values()))

pool = Pool(1)
(pool.spawn if hasattr(pool, "spawn") else pool.spawn_n)(work)
pool.JOIN()
sys.exit(0 if set(beats) == {"Renewed"} and len(beats) >= 3 else f"wrong: {beats}")
"""


def run(program, library, server):
    pytest.importorskip(library)
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            PATCHES[library] + program.replace("JOIN", JOIN[library]),
            server.url,
        ],
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_greenlets_share_a_store_and_a_native_thread_beats_beside_them(client, server, library):
    ended = run(PROGRAM, library, server)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_thread_that_renews_anew_does_not_use_the_connection_of_one_that_has_ended(client, server, library):
    """Under gevent a socket belongs to the hub of its thread; each first renewal after a rest would fail."""
    ended = run(RENEWED_BY_ANOTHER_THREAD, library, server)

    assert (ended.returncode, ended.stderr) == (0, "")
