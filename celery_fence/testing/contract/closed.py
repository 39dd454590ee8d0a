"""What a store promises about a key whose lease expired without a release: the lost delay."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from celery_fence.errors import ConfigError
from celery_fence.locking.store import (
    Claim,
    DeliveryEnded,
    Ending,
    ForceReleased,
    Gone,
    Held,
    Kept,
    Released,
    Store,
)
from celery_fence.testing.contract.asking import (
    DEADLINE,
    SHORT,
    TTL,
    Asking,
    PassTime,
    claim_of,
    expire,
    granted,
    holder_of,
    renew,
    renewal_of,
    ttl_left,
)


def wary(*, ttl: float = SHORT, lost_delay: float = TTL) -> Claim:
    """A claim whose key stays closed after a loss."""
    return replace(claim_of(ttl=ttl), lost_delay=lost_delay, delivery="d1", message="m1")


def close(store: Store, key: str, pass_time: PassTime) -> None:
    """Let time pass until the lease on *key* has expired and its lost delay runs."""
    deadline = time.monotonic() + DEADLINE
    while not holder_of(store, key).closed:
        assert time.monotonic() < deadline, f"the lease on {key!r} doesn't expire"
        pass_time(SHORT / 10)


class LostDelayContract(Asking):
    """After a lease expired without a release, its key stays closed for the lost delay."""

    def test_a_live_lease_isn_t_closed_and_its_time_left_is_that_of_its_ttl(self, store: Store) -> None:
        claim = wary(ttl=5.0)
        granted(store, claim)

        holder = holder_of(store, claim.key)

        assert not holder.closed
        assert holder.ttl_left is not None
        assert 0 < holder.ttl_left <= claim.ttl

    def test_a_closed_key_is_granted_to_nobody(self, store: Store, pass_time: PassTime) -> None:
        claim = wary()
        grant = granted(store, claim)
        close(store, claim.key, pass_time)

        for asker in (claim, claim_of(), replace(claim, owner="a copy")):
            answer = store.acquire(asker)
            assert isinstance(answer, Held)
            assert (answer.holder.owner, answer.holder.token) == (claim.owner, grant.token)
            assert answer.holder.closed
            assert answer.holder.ttl_left is not None
            assert TTL - DEADLINE < answer.holder.ttl_left <= TTL

    def test_the_key_opens_when_the_lost_delay_is_over_and_the_token_is_greater(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = wary(lost_delay=SHORT)
        grant = granted(store, claim)
        close(store, claim.key, pass_time)
        expire(store, claim.key, pass_time)

        assert granted(store, claim_of()).token > grant.token

    def test_a_closed_lease_can_t_be_renewed(self, store: Store, pass_time: PassTime) -> None:
        claim = wary()
        grant = granted(store, claim)
        close(store, claim.key, pass_time)
        before = ttl_left(store, claim.key)

        assert renew(store, claim, grant) == Gone("expired")
        assert ttl_left(store, claim.key) <= before
        assert holder_of(store, claim.key).closed

    def test_another_owner_s_renewal_is_told_that_the_key_is_taken(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim, stranger = wary(), claim_of()
        grant = granted(store, claim)
        close(store, claim.key, pass_time)

        answer = renew(store, stranger, grant)

        assert isinstance(answer, Gone)
        assert answer.reason == "taken"
        assert answer.holder is not None
        assert answer.holder.closed

    @pytest.mark.parametrize("knows_token", [True, False])
    def test_its_owner_s_release_opens_a_closed_key(
        self, store: Store, pass_time: PassTime, *, knows_token: bool
    ) -> None:
        claim = wary()
        grant = granted(store, claim)
        close(store, claim.key, pass_time)

        assert store.release(claim, grant.token if knows_token else 0, Ending("returned")) == Released()
        assert store.holder(claim.key) is None
        assert isinstance(store.acquire(replace(claim, owner="a copy")), DeliveryEnded)

    def test_another_owner_s_release_leaves_a_closed_key_alone(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = wary()
        granted(store, claim)
        close(store, claim.key, pass_time)

        answer = store.release(claim_of(), 1)

        assert isinstance(answer, Gone)
        assert answer.reason == "taken"
        assert holder_of(store, claim.key).closed

    def test_a_force_release_opens_a_closed_key_and_says_that_nobody_worked(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = wary()
        granted(store, claim)
        close(store, claim.key, pass_time)

        answer = store.force_release(claim.key)

        assert isinstance(answer, ForceReleased)
        assert answer.holder is not None
        assert answer.holder.closed
        granted(store, claim_of())

    def test_a_released_key_is_open_at_once(self, store: Store) -> None:
        claim = wary(ttl=TTL)
        store.release(claim, granted(store, claim).token)

        granted(store, claim_of())

    def test_a_closed_key_is_listed_as_such(self, store: Store, pass_time: PassTime) -> None:
        claim = wary()
        granted(store, claim)
        close(store, claim.key, pass_time)

        assert [(holder.key, holder.closed) for holder in store.leases()] == [(claim.key, True)]

    def test_renewals_carry_the_lost_delay_on(self, store: Store, pass_time: PassTime) -> None:
        claim = wary(ttl=2 * SHORT)
        grant = granted(store, claim)
        for _ in range(3):
            pass_time(SHORT)
            assert renew(store, claim, grant) == Kept()
            assert not holder_of(store, claim.key).closed

        close(store, claim.key, pass_time)
        assert isinstance(store.acquire(claim_of()), Held)

    def test_a_lease_that_was_put_back_has_its_lost_delay(self, store: Store, pass_time: PassTime) -> None:
        claim = wary()
        grant = granted(store, replace(claim, lost_delay=0.0))
        expire(store, claim.key, pass_time)

        assert store.renew([renewal_of(claim, grant)]) == [Kept(reinstated=True)]
        close(store, claim.key, pass_time)
        assert isinstance(store.acquire(claim_of()), Held)

    def test_what_the_same_owner_asks_again_is_what_counts(self, store: Store, pass_time: PassTime) -> None:
        claim = wary()
        granted(store, claim)
        granted(store, replace(claim, lost_delay=0.0))

        assert not holder_of(store, claim.key).closed
        expire(store, claim.key, pass_time)
        granted(store, claim_of())

    @pytest.mark.parametrize("lost_delay", [-1.0, float("nan"), float("inf")])
    def test_a_lost_delay_that_can_t_be_is_refused(self, store: Store, lost_delay: float) -> None:
        with pytest.raises(ConfigError, match="lost_delay"):
            store.acquire(wary(lost_delay=lost_delay))
