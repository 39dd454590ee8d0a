"""A release frees the key once, and tells of a loss only where there was one."""

from __future__ import annotations

import os

import pytest

from celery_fence.errors import LeaseLost
from celery_fence.locking import events
from celery_fence.locking.lease import State
from celery_fence.locking.store import Claim, Released


def test_a_release_frees_the_key_and_is_told_once(acquire, locker, onlooker, heartbeat, clock, told):  # noqa: PLR0917 - fixtures
    lease = acquire()
    clock.advance(5)
    told.clear()

    assert locker.release(lease) == Released()
    assert onlooker.holder("job:1") is None
    assert heartbeat.watching == 0
    assert lease.state is State.RELEASED
    assert told == [events.ReleasedLease("the task", "job:1", lease, "released", 5.0)]


def test_a_released_lease_is_never_renewed_into_existence(acquire, locker, onlooker, heartbeat, clock):
    locker.release(acquire())
    clock.advance(10)
    heartbeat.beat()

    assert onlooker.holder("job:1") is None


def test_a_release_of_what_another_has_touches_nothing_and_says_so(acquire, locker, onlooker, clock, told):
    lease = acquire("me")
    clock.advance(31)
    acquire("you")
    told.clear()
    answer = locker.release(lease)

    assert answer.reason == "taken"
    assert onlooker.holder("job:1").owner == "you"
    assert [type(event) for event in told] == [events.Lost, events.ReleasedLease]
    assert told[1].outcome == "gone"


def test_a_loss_that_only_the_release_finds_is_told(acquire, locker, onlooker, told, clock):
    lease = acquire("me")
    onlooker.force_release("job:1")
    told.clear()
    locker.release(lease)

    assert [(type(event), getattr(event, "reason", None)) for event in told] == [
        (events.Lost, "force_released"),
        (events.ReleasedLease, None),
    ]
    with pytest.raises(LeaseLost, match="an operator"):
        lease.check()


@pytest.fixture
def come_and_go(onlooker):
    """A successor has the key, and gives it back."""

    def come_and_go(owner="you"):
        successor = Claim("job:1", owner, 30.0)
        onlooker.release(successor, onlooker.acquire(successor).token)

    return come_and_go


@pytest.mark.parametrize("then_held", [False, True])
def test_a_release_whose_reply_was_lost_is_no_loss_although_others_had_the_key_before_it_was_asked_again(  # noqa: PLR0917 - fixtures
    acquire, locker, store, onlooker, come_and_go, told, then_held
):
    def between():
        come_and_go()
        if then_held:
            onlooker.acquire(Claim("job:1", "a third", 30.0))

    lease = acquire("me")
    store.between = between
    told.clear()
    answer = locker.release(lease)

    assert (answer.reason, answer.repeated) == ("taken" if then_held else "superseded", True)
    assert [(type(event), event.outcome) for event in told] == [(events.ReleasedLease, "released")]
    assert lease.state is State.RELEASED


def test_a_renewal_that_finds_a_successor_while_the_release_is_not_answered_yet_is_no_loss(  # noqa: PLR0917 - fixtures
    acquire, locker, store, onlooker, heartbeat, clock, come_and_go, told
):
    noticed = []

    def between():
        come_and_go()
        onlooker.acquire(Claim("job:1", "a third", 30.0))
        clock.advance(10)
        heartbeat.beat()

    lease = acquire("me", on_lost=noticed.append)
    store.between = between
    told.clear()
    locker.release(lease)

    assert [getattr(event, "outcome", event) for event in told] == ["released"]
    assert noticed == []
    assert heartbeat.watching == 0


def test_a_release_that_takes_longer_than_the_trust_lasts_is_no_loss_but_the_lease_says_no_meanwhile(
    acquire, locker, store, clock, told
):
    lease = acquire("me", ttl=30)
    said = []

    def between():
        clock.advance(29)
        said.append(lease.lost)

    store.between = between
    told.clear()
    locker.release(lease)

    assert said == [True]
    assert [event.outcome for event in told] == ["released"]


def test_what_a_lease_that_was_lost_before_is_told_at_a_repeated_release_stays_a_loss(  # noqa: PLR0917 - fixtures
    acquire, locker, store, come_and_go, clock, told
):
    lease = acquire("me")
    clock.advance(31)
    come_and_go()
    store.between = lambda: None
    told.clear()
    locker.release(lease)

    assert [type(event) for event in told] == [events.Lost, events.ReleasedLease]
    assert told[1].outcome == "gone"


def test_a_force_release_that_only_a_repeated_release_finds_is_told(acquire, locker, store, onlooker, told):
    lease = acquire("me")
    onlooker.force_release("job:1")
    store.between = lambda: None
    told.clear()
    locker.release(lease)

    assert [getattr(event, "reason", None) for event in told] == ["force_released", None]


def test_a_release_that_the_store_never_got_raises_nothing_and_ends_with_the_ttl(  # noqa: PLR0917 - fixtures
    acquire, locker, store, onlooker, heartbeat, clock, down, told
):
    lease = acquire()
    store.before = down
    told.clear()

    assert locker.release(lease) is None
    assert [(event.outcome, event.error) for event in told] == [("unreachable", down)]
    assert heartbeat.watching == 0
    clock.advance(30.1)
    assert onlooker.holder("job:1") is None


def test_a_lost_reply_to_a_release_can_be_asked_for_again(acquire, locker, store, onlooker, down):
    lease = acquire()
    store.after = down
    assert locker.release(lease) is None
    store.after = None

    assert locker.release(lease) == Released()
    assert onlooker.holder("job:1") is None


def test_a_fork_that_leaves_through_the_run_does_not_give_the_lease_back(acquire, locker, onlooker, told):
    """`os.fork()` in a body, and `sys.exit()` in the child: every `finally` of the run is passed there, too."""
    lease = acquire()
    child = os.fork()
    if child == 0:
        answer = locker.release(lease)
        untouched = answer is None and onlooker.holder("job:1") is not None
        os._exit(0 if untouched and len(told) == 1 else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(locker.release(lease), Released)
    assert onlooker.holder("job:1") is None
