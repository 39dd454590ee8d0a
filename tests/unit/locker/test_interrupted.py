"""The owner is known before the store is asked, so an interruption leaves nothing over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.lease import State
from celery_fence.locking.locker import Terms
from tests.unit.locker.asked import DELIVERED, RETURNED, Interruption


@pytest.mark.parametrize("where", ["into", "watch"])
def test_an_interrupted_acquire_leaves_nothing(acquire, onlooker, heartbeat, monkeypatch, where):
    def interrupted(*_):
        raise KeyboardInterrupt

    if where == "watch":
        watch = type(heartbeat).watch
        monkeypatch.setattr(heartbeat, "watch", lambda *args: (watch(heartbeat, *args), interrupted()))
    with pytest.raises(KeyboardInterrupt):
        acquire(into=interrupted if where == "into" else lambda lease: None)

    assert onlooker.holder("job:1") is None
    assert heartbeat.watching == 0


def test_what_an_interrupted_acquire_may_have_been_granted_is_given_back_without_waiting_for_the_store(
    acquire, store, onlooker, heartbeat
):
    store.after = Interruption()
    with pytest.raises(Interruption):
        acquire()
    assert onlooker.holder("job:1") is not None  # nobody has waited for a store that may hang
    store.after = None
    heartbeat.pay()

    assert onlooker.holder("job:1") is None
    assert heartbeat.watching == heartbeat.noting == 0


def test_a_question_that_is_still_under_way_when_its_asker_was_interrupted_grants_nothing(
    acquire, store, heartbeat
):
    store.before = Interruption()
    with pytest.raises(Interruption):
        acquire("me")
    store.before = None
    heartbeat.pay()

    with pytest.raises(StoreUnavailable, match="has released"):
        acquire("me")


def test_a_grant_that_could_not_be_given_back_is_given_back_when_the_store_answers(
    acquire, store, onlooker, heartbeat, down
):
    def into(_):
        store.before = down
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        acquire(into=into)
    store.before = None
    heartbeat.pay()

    assert onlooker.holder("job:1") is None


@pytest.mark.parametrize("heard", [False, True])
def test_a_release_that_was_interrupted_is_made_later_and_remembers_the_end(  # noqa: PLR0917 - fixtures
    locker, store, onlooker, heartbeat, told, heard
):
    lease = locker.acquire(DELIVERED, source="the task", terms=Terms(), into=lambda lease: None)
    store.before, store.after = (None, Interruption()) if heard else (Interruption(), None)
    with pytest.raises(Interruption):
        locker.release(lease, RETURNED, "d1")
    store.before = store.after = None
    told.clear()
    locker.release_later(lease, RETURNED, "d1")
    heartbeat.pay()

    assert onlooker.acquire(replace(DELIVERED, owner="copy")).ending == RETURNED
    assert [(type(event), event.outcome) for event in told] == [
        (events.ReleasedLease, "unreachable"),
        (events.ReleasedLate, "released"),
    ]
    assert heartbeat.watching == 0


def test_a_lease_whose_release_was_interrupted_before_it_began_is_renewed_no_more(acquire, locker, heartbeat):
    lease = acquire()
    locker.release_later(lease)

    assert lease.state is State.RELEASED
    assert heartbeat.watching == 0


def test_a_fork_makes_up_for_no_release(acquire, locker, heartbeat, onlooker):
    lease = acquire()
    lease.pid += 1
    locker.release_later(lease)

    assert heartbeat.noting == 0
    assert heartbeat.watching == 1
    lease.pid -= 1
    locker.release(lease)
