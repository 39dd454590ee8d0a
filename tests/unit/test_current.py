"""The lease that the running code is under: per thread, nested, and gone afterwards."""

from __future__ import annotations

import threading

import pytest

from celery_fence import current_lease
from celery_fence.locking.current import Frame, entered, frames, held_here, lease_of
from celery_fence.locking.null_lease import NullLease


def test_outside_of_a_lease_there_is_none():
    assert current_lease() is None
    assert frames() == ()
    assert lease_of("task") is None
    assert held_here("job:1", None) is None


def test_the_innermost_lease_is_the_current_one_and_each_task_sees_its_own(make_lease):
    outer, inner = make_lease(), make_lease()
    with entered(Frame(outer, "outer task")):
        with entered(Frame(inner, "inner task")):
            assert current_lease() is inner
            assert (lease_of("outer task"), lease_of("inner task")) == (outer, inner)
        assert current_lease() is outer
        assert lease_of("inner task") is None
    assert current_lease() is None


def test_a_body_that_raises_leaves_nothing(make_lease):
    with pytest.raises(KeyError), entered(Frame(make_lease(), None)):
        raise KeyError
    assert current_lease() is None


def test_only_a_live_lease_on_the_key_counts_as_held_here(make_lease):
    lease, other = make_lease(key="a"), make_lease(key="b")
    with entered(Frame(lease, None)), entered(Frame(other, None)), entered(Frame(NullLease(), None)):
        assert held_here("a", None) is lease
        assert held_here("a", ("another store", "fence")) is None
        lease.lose("taken")
        assert held_here("a", None) is None
        other.end()
        assert held_here("b", None) is None


def test_another_thread_sees_nothing_of_it(make_lease):
    seen = []
    with entered(Frame(make_lease(), None)):
        thread = threading.Thread(target=lambda: seen.append(current_lease()))
        thread.start()
        thread.join(5)
    assert seen == [None]
