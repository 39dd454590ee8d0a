"""
What a type checker sees of the public names. Never run: `make check` has mypy read it.

A line that must be refused carries a ``type: ignore`` with its code; mypy then
complains when the line is NOT refused.
"""

from __future__ import annotations

from typing import assert_type

from celery import Celery

import celery_fence
from celery_fence import (
    ConfigError,
    Contended,
    DeadLettered,
    FencedTask,
    FenceError,
    Lease,
    LeaseLost,
    StaleToken,
    StoreUnavailable,
    hold,
    is_skipped,
    policies,
    signals,
)

app = Celery("typed", fence_url="memory://")


@app.task(
    base=FencedTask,
    lock_key="tenant:<tenant_id>:sync",
    lock_ttl=30,
    miss_policy=policies.Retry(min_delay=1, max_delay=30, max_wait=600, then=policies.Skip()),
)
def sync_tenant(tenant_id: int, *, fencing_token: int | None) -> str:
    return f"{tenant_id}/{fencing_token}"


class Import(FencedTask):
    """A base class of the user's, with options as attributes."""

    abstract = True
    lock_key = "import:<source>"
    lock_ttl = 120
    miss_policy = "skip"


def a_block_gives_a_lease() -> None:
    with hold("invoice:<id>", {"id": 48291}, ttl=10, wait=2) as lease:
        a_lease_says_what_it_is(lease)


def a_lease_says_what_it_is(lease: Lease) -> None:
    assert_type(lease.key, str)
    assert_type(lease.token, int)
    assert_type(lease.owner, str)
    assert_type(lease.ttl, float)
    assert_type(lease.trusted_for, float)
    assert_type(lease.lost, bool)
    assert_type(lease.headers(), dict[str, str])
    lease.check()
    lease.verify()


def a_lease_is_not_to_be_moved(lease: Lease) -> None:
    lease.key = "another"  # type: ignore[misc]
    lease.deadline  # type: ignore[attr-defined]  # noqa: B018


def there_may_be_no_lease_at_all() -> None:
    lease = celery_fence.current_lease()
    if lease is not None:
        lease.check()
    lease.check()  # type: ignore[union-attr]


def a_policy_is_a_value_that_does_not_change() -> None:
    policy = policies.Retry(max_wait=600)
    assert_type(policy.max_wait, float | None)
    policy.max_wait = 1  # type: ignore[misc]
    policies.Retry(max_wait="ten minutes")  # type: ignore[arg-type]
    policies.Skip(chain="perhaps")  # type: ignore[arg-type]
    policies.Requeue(max_waits=1)  # type: ignore[call-arg]


def a_result_can_be_asked_whether_it_was_skipped(result: object) -> str:
    return "skipped" if assert_type(is_skipped(result), bool) else "done"


def every_error_is_a_fence_error(error: FenceError) -> str | None:
    match error:
        case Contended() | LeaseLost() | DeadLettered():
            return assert_type(error.key, str | None)
        case StaleToken():
            return assert_type(error.scope, str | None)
        case ConfigError() | StoreUnavailable():
            return None
    return str(error)


def on_lost(sender: object, **facts: object) -> None:
    print(sender, facts["key"])


signals.lease_lost.connect(on_lost)
