"""A renewal sets the time left of the own lease, and the loss of one is told once."""

from __future__ import annotations

from celery_fence.locking import events


def test_a_loss_is_told_to_observers_and_to_the_holder_once(acquire, onlooker, heartbeat, clock, told):
    noticed = []
    lease = acquire(on_lost=noticed.append)
    onlooker.force_release("job:1")
    told.clear()
    clock.advance(10)
    heartbeat.beat()
    assert lease.lost

    assert noticed == [lease]
    assert told == [events.Lost("the task", "job:1", lease, "force_released")]


def test_a_vanished_lease_is_put_back_with_its_token(acquire, onlooker, heartbeat, clock, told):
    lease = acquire()
    onlooker.flush()
    told.clear()
    clock.advance(10)
    heartbeat.beat()

    assert onlooker.holder("job:1").token == lease.token
    assert [event.reinstated for event in told] == [True]


def test_renewal_sets_the_time_left_and_never_adds_to_it(acquire, onlooker, heartbeat, clock):
    acquire(ttl=10)
    left = []
    while clock() < 1060:
        clock.advance(0.1)
        heartbeat.beat()
        left.append(onlooker.holder("job:1").ttl_left)

    assert max(left) <= 10.001
    assert min(left) > 10 / 3


def test_a_paused_holder_does_not_renew_its_successors_lease(acquire, onlooker, heartbeat, clock, told):
    """N05: paused beyond its TTL, another takes over, the paused one wakes up."""
    mine = acquire("me", ttl=3)
    heartbeat.forget(mine)
    clock.advance(5)
    yours = acquire("you", ttl=3)
    heartbeat.forget(yours)
    heartbeat.watch(mine, told.append)
    heartbeat.beat()

    assert mine.lost
    assert yours.token > mine.token
    clock.advance(3.01)
    assert onlooker.holder("job:1") is None
