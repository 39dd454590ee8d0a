"""How the contract's tests ask a store, and the fixtures that all of them share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from celery_fence.locking.store import (
    Claim,
    DeliveryEnded,
    Ending,
    Gone,
    Granted,
    Held,
    Holder,
    Kept,
    Released,
    Renewal,
    Store,
)

TTL = 30.0
SHORT = 0.3
DEADLINE = 10.0

AWKWARD_KEYS = (
    "tenant:7:sync",
    "x",
    "x:token",
    "token:x",
    "x:done:1",
    "expiries",
    "lease:x",
    "{}",
    "}{",
    "a{b}c",
    "{b00}",
    "50%25",
    "with space\r\nand line",
    "nul\x00inside",
    "größe:東京:🔒",
    "\ud800lone",
    "*",
    "[a-z]?",
    "k" * 500,
)

VALUE = b"\x00\xff\r\n\xf0" * 1600
"""8 kB that no text could hold."""

PassTime = Callable[[float], None]
CopyData = Callable[[], Callable[[], None]]
numbers = count()


def claim_of(key: str = "tenant:7:sync", *, ttl: float = TTL, owner: str | None = None) -> Claim:
    """A claim by an owner nobody had before, unless given."""
    return Claim(key, owner or f"owner-{next(numbers)}", ttl)


def granted(store: Store, claim: Claim) -> Granted:
    """Acquire *claim*, which must be granted."""
    answer = store.acquire(claim)
    assert isinstance(answer, Granted), answer
    return answer


def delivered(delivery: str = "d1", *, message: str = "m1", if_held: str = "", ttl: float = 30.0) -> Claim:
    """A claim for *delivery*, by an owner nobody had before."""
    return replace(claim_of(ttl=ttl), delivery=delivery, message=message, if_held=if_held)


def by_another_owner(claim: Claim) -> Claim:
    """What a copy of the same message asks."""
    return replace(claim, owner=f"copy-{next(numbers)}")


def run(store: Store, claim: Claim, ending: Ending | None) -> None:
    """A whole run of *claim* that ends so."""
    assert store.release(claim, granted(store, claim).token, ending) == Released()


def ended(store: Store, claim: Claim) -> DeliveryEnded:
    """What a copy of *claim* is told, which must be that it has ended."""
    answer = store.acquire(by_another_owner(claim))
    assert isinstance(answer, DeliveryEnded), answer
    return answer


def missed(store: Store, claim: Claim) -> Held:
    """Ask for *claim*, whose key must be held."""
    answer = store.acquire(claim)
    assert isinstance(answer, Held), answer
    return answer


def renewal_of(claim: Claim, grant: Granted) -> Renewal:
    """The wish to keep what was granted."""
    return Renewal(claim, grant.token, grant.since)


def renew(store: Store, claim: Claim, grant: Granted) -> Kept | Gone:
    """Renew one lease."""
    return store.renew([renewal_of(claim, grant)])[0]


def holder_of(store: Store, key: str) -> Holder:
    """The holder of *key*, which must have one."""
    holder = store.holder(key)
    assert holder is not None
    return holder


def ttl_left(store: Store, key: str) -> float:
    """The seconds that the lease on *key* has left."""
    left = holder_of(store, key).ttl_left
    assert left is not None
    return left


def expire(store: Store, key: str, pass_time: PassTime) -> None:
    """Let time pass until nobody has *key*."""
    deadline = time.monotonic() + DEADLINE
    while store.holder(key) is not None:
        assert time.monotonic() < deadline, f"the lease on {key!r} doesn't expire"
        pass_time(SHORT / 10)


class Asking:
    """What a store has to give: a fixture `store`, and two more where it can."""

    @pytest.fixture
    def pass_time(self) -> PassTime:
        """Let seconds pass on the store's clock; waits, unless overridden."""
        return time.sleep

    @pytest.fixture
    def lose_everything(self) -> Callable[[], None]:
        """Make the store lose its data; not tested unless overridden."""
        pytest.skip("also on CI: this store has no way to lose its data")

    @pytest.fixture
    def copy_data(self) -> CopyData:
        """Copy the store's data; what it returns brings them back. Not tested unless overridden."""
        pytest.skip("also on CI: this store has no way to bring older data back")
