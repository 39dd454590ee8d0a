"""A grant is watched and trusted from the asking; who holds the key is an answer."""

from __future__ import annotations

import pytest

from celery_fence.errors import StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.lease import Lease
from celery_fence.locking.locker import Terms
from celery_fence.locking.store import Held


def test_a_granted_lease_is_told_of_watched_and_trusted_from_the_asking(acquire, store, heartbeat, told):
    store.took = 2.0
    lease = acquire(waited=7.0)

    assert lease.trusted_for == pytest.approx(28.5 - 2)
    assert heartbeat.watching == 1
    assert told == [events.Acquired("the task", "job:1", lease, 7.0)]


def test_who_holds_it_is_an_answer_and_no_event(acquire, told, heartbeat):
    acquire("me")
    told.clear()
    answer = acquire("you")

    assert isinstance(answer, Held)
    assert answer.holder.owner == "me"
    assert told == []
    assert heartbeat.watching == 1


def test_the_lease_is_handed_over_before_it_is_watched(acquire, heartbeat):
    seen = []
    acquire(into=lambda lease: seen.append((lease.key, heartbeat.watching)))

    assert seen == [("job:1", 0)]


def test_tokens_grow_from_grant_to_grant(acquire, locker):
    tokens = []
    for owner in "abc":
        lease = acquire(owner)
        tokens.append(lease.token)
        locker.release(lease)

    assert tokens == sorted(set(tokens))


def test_a_grant_that_took_too_long_is_given_back_with_an_error_that_says_so(
    acquire, store, onlooker, heartbeat, told
):
    store.took = 15.0
    with pytest.raises(StoreUnavailable, match=r"memory://.* took 15\.0 s to grant 'job:1'.*raise lock_ttl"):
        acquire(ttl=30)

    assert onlooker.holder("job:1") is None
    assert heartbeat.watching == 0
    assert told == []


def test_half_of_its_trust_is_enough(acquire, store):
    store.took = 14.0

    assert acquire(ttl=30).trusted_for == pytest.approx(14.5)


def test_a_lost_reply_to_an_acquire_is_an_outage_and_the_ttl_ends_what_it_left(  # noqa: PLR0917 - fixtures
    acquire, store, onlooker, heartbeat, clock, down
):
    store.after = down
    with pytest.raises(StoreUnavailable):
        acquire(ttl=30)

    assert heartbeat.watching == 0
    clock.advance(30.1)
    assert onlooker.holder("job:1") is None


def test_a_lost_reply_and_the_same_question_again_is_one_grant(acquire, store, down):
    store.after = down
    with pytest.raises(StoreUnavailable):
        acquire("me")
    store.after = None

    assert isinstance(acquire("me"), Lease)


def test_a_late_copy_of_a_question_after_the_release_grants_nothing(acquire, locker, onlooker):
    locker.release(acquire("me"))

    with pytest.raises(StoreUnavailable, match="owner me has released"):
        acquire("me")
    assert onlooker.holder("job:1") is None


def test_the_terms_reach_the_lease(acquire):
    lease = acquire(terms=Terms(renew_fraction=0.25, max_hold=90.0))

    assert (lease.renew_fraction, lease.max_hold) == (0.25, 90.0)
