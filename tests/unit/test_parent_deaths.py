"""The worker's main process frees what its dead pool processes held: by owner, off its own path, until it succeeds."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from unittest.mock import Mock

import pytest

from celery_fence import FencedTask, hold
from celery_fence.errors import LockKeyError
from celery_fence.locking import current
from celery_fence.locking.store import Claim
from celery_fence.task import deaths as module
from celery_fence.task.burials import deaths_of, watch_deaths, watch_pool
from celery_fence.task.deaths import Accepted, Deaths
from celery_fence.task.request import FencedRequest
from celery_fence.task.run import Run
from celery_fence.testing.clock import FakeClock

DEADLINE = 15.0


def until(condition, seconds=DEADLINE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


@pytest.fixture
def deaths():
    return Deaths()


@pytest.fixture
def make_run(leases):
    def make(owner="run-1", key="job:1", ttl=30.0):
        return Accepted(owner, "a task", ttl, key=lambda: key, store=lambda: leases)

    return make


@pytest.fixture
def take(leases):
    def take(key, owner, ttl=60.0):
        leases.acquire(Claim(key, owner, ttl))

    return take


def test_what_a_dead_process_held_is_free(deaths, make_run, take, leases):
    take("job:1", "run-1")
    deaths.accepted(11, make_run())
    deaths.buried(alive=[12])

    until(lambda: leases.holder("job:1") is None)


def test_the_blocks_inside_its_run_are_free_too(deaths, make_run, take, leases):
    take("job:1", "run-1")
    take("inner:1", "run-1.f00")
    take("inner:2", "run-1.ba5")
    deaths.accepted(11, make_run())
    deaths.buried(alive=[])

    until(lambda: not list(leases.leases()))


def test_what_others_hold_stays_theirs(deaths, make_run, take, leases):
    """A successor has the key by now; another run's owner only begins alike."""
    take("job:1", "successor")
    take("inner:1", "run-10.f00")
    take("inner:2", "run-1.f00")
    deaths.accepted(11, make_run())
    deaths.buried(alive=[])
    until(lambda: leases.holder("inner:2") is None)

    assert {holder.owner for holder in leases.leases()} == {"successor", "run-10.f00"}


def test_while_its_process_lives_a_lease_stays(deaths, make_run, take, leases, monkeypatch):
    started = []
    monkeypatch.setattr(module, "start_thread", started.append)
    take("job:1", "run-1")
    deaths.accepted(11, make_run())
    deaths.buried(alive=[11])

    assert started == []


def test_for_a_process_whose_run_had_ended_nothing_is_done(deaths, make_run, monkeypatch):
    started = []
    monkeypatch.setattr(module, "start_thread", started.append)
    deaths.accepted(11, make_run())
    deaths.ended(11, "run-1")
    deaths.buried(alive=[])

    assert started == []


def test_the_result_of_an_earlier_run_does_not_hide_the_later_one(deaths, make_run):
    deaths.accepted(11, make_run("run-2"))
    deaths.ended(11, "run-1")

    assert deaths.busy == [11]


def test_a_store_that_is_away_is_asked_again_until_it_is_back(deaths, make_run, take, leases, down):
    take("job:1", "run-1")
    asked = []

    def store():
        asked.append(1)
        if len(asked) < 3:
            raise down
        return leases

    deaths.accepted(11, replace(make_run(), store=store))
    deaths.buried(alive=[])

    until(lambda: leases.holder("job:1") is None)
    assert len(asked) == 3


def test_it_gives_up_when_the_ttl_is_over_and_says_so(make_run, down, monkeypatch, caplog):
    clock = FakeClock(100.0)
    deaths, asked = Deaths(clock), []
    monkeypatch.setattr(module, "pause", lambda seconds: clock.advance(4.0))

    def store():
        asked.append(clock())
        raise down

    deaths.accepted(11, replace(make_run(ttl=10.0), store=store))
    deaths.buried(alive=[])
    until(lambda: "stayed until their TTL ended" in caplog.text)

    assert asked == [100.0, 104.0, 108.0, 112.0]


def test_the_main_process_does_not_wait_for_the_store(deaths, make_run, leases):
    go_on, asked = threading.Event(), threading.Event()

    def store():
        asked.set()
        go_on.wait(DEADLINE)
        return leases

    deaths.accepted(11, replace(make_run(), store=store))
    deaths.buried(alive=[])  # returns although the store doesn't answer
    assert asked.wait(DEADLINE)
    go_on.set()
    deaths.finish(DEADLINE)


def test_the_last_releases_are_waited_for_but_not_for_ever(deaths, make_run, take, leases):
    take("job:1", "run-1")
    deaths.accepted(11, make_run())
    deaths.buried(alive=[])
    deaths.finish(DEADLINE)
    before = time.monotonic()
    deaths.finish(DEADLINE)

    assert leases.holder("job:1") is None
    assert time.monotonic() - before < DEADLINE / 2


def test_a_release_that_breaks_is_logged_and_the_next_death_is_heard_of(
    deaths, make_run, take, leases, caplog
):
    deaths.accepted(11, replace(make_run(), store=lambda: 1 / 0))
    deaths.buried(alive=[])
    until(lambda: "releasing them failed" in caplog.text)
    take("job:1", "run-2")
    deaths.accepted(12, make_run("run-2"))
    deaths.buried(alive=[])

    until(lambda: leases.holder("job:1") is None)


def test_a_machine_without_a_thread_to_spare_is_asked_again_at_the_next_look(  # noqa: PLR0917 - fixtures
    deaths, make_run, take, leases, monkeypatch, caplog
):
    def none_left(function):
        raise RuntimeError("can't start new thread")

    take("job:1", "run-1")
    deaths.accepted(11, make_run())
    with monkeypatch.context() as patch:
        patch.setattr(module, "start_thread", none_left)
        deaths.buried(alive=[])
    deaths.buried(alive=[])

    until(lambda: leases.holder("job:1") is None)
    assert "What dead pool processes held can't be released yet" in caplog.text


def test_a_thread_that_was_struck_is_replaced_at_the_next_look_and_nothing_is_forgotten(
    deaths, make_run, take, leases, monkeypatch
):
    def work(function):
        with suppress(SystemExit):
            function()

    take("job:1", "run-1")
    monkeypatch.setattr(module, "start_thread", work)
    deaths.accepted(11, replace(make_run(), store=Mock(side_effect=[SystemExit, leases])))
    deaths.buried(alive=[])
    assert leases.holder("job:1") is not None
    deaths.buried(alive=[])

    assert leases.holder("job:1") is None


def test_a_key_that_cannot_be_built_leaves_the_blocks_to_be_freed(deaths, make_run, take, leases):
    def no_key():
        raise LockKeyError("no key")

    take("inner:1", "run-1.f00")
    deaths.accepted(11, replace(make_run(), key=no_key))
    deaths.buried(alive=[])

    until(lambda: leases.holder("inner:1") is None)


class Process:
    def __init__(self, pid):
        self.pid = pid


class BilliardPool:
    """What `watch_pool` knows of billiard's: the list of processes, and the method that reaps it."""

    def __init__(self, *pids):
        self._pool = [Process(pid) for pid in pids]

    def apply_async(self, *args, **options):
        raise NotImplementedError

    def _join_exited_workers(self, shutdown=False):
        self._pool = [process for process in self._pool if process.pid != 11]
        return ["-9"]


def test_a_pool_tells_when_it_has_buried_a_process(deaths, make_run, take, leases):
    take("job:1", "run-1")
    take("job:2", "run-2")
    pool = BilliardPool(11, 12)
    watch_pool(pool, deaths)
    deaths.accepted(11, make_run())
    deaths.accepted(12, make_run("run-2", "job:2"))

    assert pool._join_exited_workers(shutdown=True) == ["-9"]
    until(lambda: leases.holder("job:1") is None)
    assert leases.holder("job:2") is not None
    assert deaths.busy == [12]


def test_billiard_still_has_what_is_hooked():
    from billiard.pool import Pool

    assert callable(Pool._join_exited_workers)


def test_a_pool_without_processes_is_not_watched(app):
    assert watch_deaths(app, object()) is None
    assert deaths_of(app) is None


def test_a_pool_process_has_inherited_no_watch(app, monkeypatch):
    class Pool:
        _pool = BilliardPool()

    watched = watch_deaths(app, Pool())
    assert deaths_of(app) is watched
    monkeypatch.setattr("celery_fence.task.burials.os.getpid", lambda: -1)

    assert deaths_of(app) is None


def test_a_block_in_a_run_has_an_owner_that_begins_with_the_runs(app, leases):
    @app.task(base=FencedTask, bind=True, lock_key="outer:<key>", name="outer")
    def outer(self, key):
        with hold("inner:<key>", {"key": key}, app=app) as lease:
            return self.lease.owner, lease.owner

    run, block = outer.apply(("k",)).get()

    assert Accepted(run, "", 1.0, str, lambda: leases).owns(block)
    assert block != run


def test_a_block_anywhere_else_has_an_owner_of_its_own(app):
    assert current.frames() == ()
    with hold("inner:k", app=app) as first:
        assert module.SHARE not in first.owner


def body(key):
    return key


@pytest.fixture
def request_of(app):
    """The request that a worker's main process makes for a message, in Celery's faster class."""
    from celery.worker.request import create_request_cls

    def make(task, *args, owner=None):
        from kombu.message import Message

        app.finalize()
        headers = {"id": "id-1", "task": task.name, "argsrepr": "", "kwargsrepr": ""}
        message = Message(
            body=(list(args), {}, {}),
            headers=headers,
            properties={},
            delivery_info={},
            content_type="application/json",
        )
        message._decoded_cache = message.body
        kind = create_request_cls(FencedRequest, task, BilliardPool(), "here", None)
        return kind(message, app=app, task=task, eventer=None)

    return make


@pytest.fixture
def watched(app):
    class Pool:
        _pool = BilliardPool()

    return watch_deaths(app, Pool())


def test_an_accepted_message_is_noted_with_its_owner_and_key(app, request_of, watched):
    task = app.task(base=FencedTask, lock_key="job:<key>", name="noted")(body)
    request = request_of(task, "k")
    request.on_accepted(11, time.monotonic())
    noted = watched._accepted[11]

    assert noted.owner == request.request_dict["fence_run"]["owner"]
    assert (noted.key(), noted.ttl, noted.task) == ("job:k", 30.0, "noted")


def test_when_its_result_has_arrived_it_is_forgotten(app, request_of, watched):
    task = app.task(base=FencedTask, lock_key="job:<key>", name="noted")(body)
    request = request_of(task, "k")
    request.on_accepted(11, time.monotonic())
    request.on_success((False, "value", 0.1))

    assert watched.busy == []


def test_an_unfenced_task_is_not_noted(app, request_of, watched):
    app.task_cls = FencedTask
    task = app.task(name="unfenced")(body)
    request_of(task, "k").on_accepted(11, time.monotonic())

    assert watched.busy == []


def test_a_run_takes_the_owner_that_the_main_process_made(app):
    task = app.task(base=FencedTask, lock_key="job:<key>", name="noted")(body)
    app.finalize()
    task.push_request(id="id-1", fence_run={"owner": "made by the main process"}, headers={})
    try:
        assert Run(task, task.request, ("k",), {}).owner == "made by the main process"
    finally:
        task.pop_request()
