"""Somebody else who holds a key, for users' tests."""

from __future__ import annotations

import pytest

from celery_fence import ConfigError, Contended, FencedTask
from celery_fence.testing import held


@pytest.fixture
def task(app):
    @app.task(base=FencedTask, lock_key="job:<key>", name="the task")
    def task(key): ...

    return task


def test_a_call_from_the_block_itself_misses(app, task):
    with held(app, "job:k"), pytest.raises(Contended, match="held by somebody else"):
        task("k")


@pytest.mark.parametrize("error", [None, ValueError("the test failed")])
def test_the_key_is_free_after_the_block_however_it_ends(app, task, error):
    if error is None:
        with held(app, "job:k"):
            assert task.lease_holder("k") is not None
    else:
        with pytest.raises(ValueError, match="the test failed"), held(app, "job:k"):
            raise error

    assert task.lease_holder("k") is None


def test_a_key_that_is_not_free_is_not_taken_away(app, task, leases):
    with held(app, "job:k"):
        holder = leases.holder("job:k")
        with pytest.raises(Contended, match="isn't free"), held(app, "job:k"):
            pytest.fail("entered")
        assert leases.holder("job:k").owner == holder.owner


def test_two_blocks_after_each_other_are_two_owners(app, leases):
    owners = set()
    for _ in range(2):
        with held(app, "job:k"):
            owners.add(leases.holder("job:k").owner)

    assert len(owners) == 2


def test_a_template_is_no_key(app):
    with pytest.raises(ConfigError, match="takes the key itself"), held(app, "job:<key>"):
        pytest.fail("entered")
