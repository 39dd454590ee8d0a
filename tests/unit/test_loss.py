"""A loss is told step by step, by one at a time, and to its end whoever is struck on the way."""

from __future__ import annotations

import threading

import pytest

from celery_fence.locking import duty
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.loss import Loss
from celery_fence.locking.store import Gone

DEADLINE = 15.0


@pytest.fixture
def step():
    """Steps that note that they were begun; one can be struck once, or made to wait."""
    begun = []

    def step(name, *, struck=False, waits=None):
        def tell():
            begun.append(name)
            if struck and begun.count(name) == 1:
                raise SystemExit
            if waits is not None:
                assert waits.wait(DEADLINE)

        return tell

    step.begun = begun
    return step


def test_it_is_told_once_in_the_order_of_its_steps(step):
    loss = Loss("taken", [step("observers"), step("run")])
    assert not loss.told
    loss.tell()
    loss.tell()

    assert loss.told
    assert step.begun == ["observers", "run"]


def test_who_tells_it_after_a_strike_goes_on_with_the_step_that_was_struck(step):
    loss = Loss("taken", [step("observers"), step("run", struck=True), step("heartbeat")])
    with pytest.raises(SystemExit):
        loss.tell()
    assert not loss.told
    loss.tell()

    assert loss.told
    assert step.begun == ["observers", "run", "run", "heartbeat"]


def test_nobody_waits_for_who_is_telling_it_and_nobody_tells_it_beside_him(step):
    hook = threading.Event()
    loss = Loss("taken", [step("observers"), step("hook", waits=hook)])
    teller = threading.Thread(target=loss.tell)
    teller.start()
    while "hook" not in step.begun:
        threading.Event().wait(0.001)
    loss.tell()
    assert not loss.told
    hook.set()
    teller.join(DEADLINE)

    assert loss.told
    assert step.begun == ["observers", "hook"]


def test_of_two_who_begin_in_the_same_moment_one_tells_it(step):
    """The other comes between the look for a teller and the claim to be it."""
    hook = threading.Event()
    loss = Loss("taken", [step("hook", waits=hook)])
    other = threading.Thread(target=loss.tell)

    class Overtaken(dict):
        def __len__(self):
            if threading.current_thread() is not other:
                other.start()
                while not step.begun:
                    threading.Event().wait(0.001)
                return 0
            return super().__len__()

    loss._tellers = Overtaken()
    loss.tell()
    hook.set()
    other.join(DEADLINE)

    assert step.begun == ["hook"]


def test_the_heartbeat_keeps_a_lost_lease_until_all_is_told(make_lease, heartbeat, clock, step):
    """The body tells of it, and its hook takes its time: were it struck now, somebody would have to go on."""
    hook = threading.Event()
    lease = make_lease(30, on_lost=[lambda *_: step("hook", waits=hook)()])
    heartbeat.watch(lease, lambda event: None)
    clock.advance(29)
    body = threading.Thread(target=lambda: lease.lost)
    body.start()
    while "hook" not in step.begun:
        threading.Event().wait(0.001)
    heartbeat.beat()
    assert heartbeat.watching == 1
    hook.set()
    body.join(DEADLINE)
    clock.advance(3)
    heartbeat.beat()

    assert heartbeat.watching == 0
    assert step.begun == ["hook"]


def test_a_loss_that_cannot_be_told_is_given_up_and_harms_no_other_lease(make_lease, heartbeat, clock, store):
    """As where the hub of its greenlets is gone."""

    def gone(*_):
        raise ValueError("operation on destroyed loop")

    lost, kept = make_lease(30, teller=gone), make_lease(30)
    for lease in (lost, kept):
        heartbeat.watch(lease, lambda event: None)
    with pytest.raises(ValueError, match="destroyed"):
        lost.lose("taken")
    for _ in range(30):
        clock.advance(3)
        heartbeat.beat()

    assert heartbeat.watching == 1
    assert kept.trusted_for > 15


def test_a_renewer_that_is_struck_as_it_tells_of_a_loss_tells_it_again(make_lease, store, step, monkeypatch):
    monkeypatch.setattr(duty, "STUMBLE", 0.0)
    heartbeat, told = Heartbeat(), threading.Event()
    store.renewal = Gone("taken")
    steps = [step("observers"), step("run", struck=True), told.set]
    lease = make_lease(
        20.0,
        asked_at=steady_clock()(),
        clock=steady_clock(),
        renew_fraction=0.005,
        on_lost=[lambda *_, tell=tell: tell() for tell in steps],
    )
    heartbeat.watch(lease, lambda event: None)
    try:
        assert told.wait(DEADLINE)
    finally:
        heartbeat.forget(lease)
        heartbeat.stop()

    assert step.begun == ["observers", "run", "run"]
