"""What a store remembers of a key besides its lease, for `fence why`."""

from __future__ import annotations

import time

import pytest

from celery_fence.locking.store import Claim, History, Inspectable
from celery_fence.stores import from_url


@pytest.fixture(params=["redis", "memory"])
def inspected(request, prefix):
    if request.param == "memory":
        yield from_url(f"memory://{prefix}")
    else:
        yield request.getfixturevalue("store")


def take(store, owner="o", key="k"):
    claim = Claim(key, owner, 30.0)
    return claim, store.acquire(claim)


def test_every_store_can_tell_what_happened(inspected):
    assert isinstance(inspected, Inspectable)


def test_nothing_is_remembered_of_a_key_that_was_never_used(inspected):
    assert inspected.history("k") == History()


def test_a_grant_is_remembered_with_its_token_and_time(inspected):
    _, granted = take(inspected)
    history = inspected.history("k")

    assert history.token == granted.token
    assert history.granted == pytest.approx(time.time(), abs=5)
    assert (history.released, history.force_released) == (None, None)


def test_a_release_is_remembered_after_its_grant(inspected):
    claim, granted = take(inspected)
    inspected.release(claim, granted.token)
    history = inspected.history("k")

    assert history.token == granted.token
    assert history.granted <= history.released <= history.granted + 5


def test_a_second_grant_leaves_the_earlier_release_behind_it(inspected):
    claim, granted = take(inspected)
    inspected.release(claim, granted.token)
    take(inspected, "other")
    history = inspected.history("k")

    assert history.released <= history.granted


def test_a_force_release_is_remembered_and_is_no_grant(inspected):
    take(inspected)
    inspected.force_release("k")
    history = inspected.history("k")

    assert history.granted is None
    assert history.force_released == pytest.approx(time.time(), abs=5)


def test_a_grant_after_a_force_release_shows_both(inspected):
    inspected.force_release("k")
    _, granted = take(inspected)
    history = inspected.history("k")

    assert history.force_released <= history.granted
    assert history.token == granted.token


def test_looking_changes_nothing(inspected):
    claim, granted = take(inspected)
    before = inspected.history("k")

    assert inspected.history("k") == before
    assert inspected.acquire(claim).token == granted.token


def test_a_counter_of_another_type_is_no_history(store, client):
    client.set(store._names.of(b"k")[1], "junk")

    assert store.history("k") == History()
