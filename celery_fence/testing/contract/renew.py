"""What `Store.renew` promises."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from celery_fence.locking.store import Facts, Gone, Kept, Store
from celery_fence.testing.contract.asking import (
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


class RenewContract(Asking):
    """Renew: set the time left of many leases back to their TTL."""

    def test_the_holder_keeps_its_lease_and_the_time_left_is_set_not_added(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = claim_of(ttl=5.0)
        grant = granted(store, claim)
        pass_time(SHORT)
        before = ttl_left(store, claim.key)

        assert renew(store, claim, grant) == Kept()
        assert renew(store, claim, grant) == Kept()
        assert before < ttl_left(store, claim.key) <= claim.ttl

    def test_a_renewed_lease_keeps_its_token_and_has_a_fresh_beat(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        pass_time(SHORT)
        stale = holder_of(store, claim.key).beat_age

        renew(store, claim, grant)

        holder = holder_of(store, claim.key)
        assert (holder.token, holder.since, holder.owner) == (grant.token, grant.since, claim.owner)
        assert holder.beat_age < stale

    def test_a_lease_renewed_in_time_outlives_its_first_ttl(self, store: Store, pass_time: PassTime) -> None:
        claim = claim_of(ttl=4 * SHORT)
        grant = granted(store, claim)
        for _ in range(3):
            pass_time(2 * SHORT)
            assert renew(store, claim, grant) == Kept()

        assert holder_of(store, claim.key).owner == claim.owner
        assert [holder.key for holder in store.leases()] == [claim.key]

    def test_many_leases_get_one_answer_each_in_order(self, store: Store) -> None:
        claims = [claim_of(f"order:{number}") for number in range(250)]
        wishes = [renewal_of(claim, granted(store, claim)) for claim in claims]
        for number in (0, 99, 100, 249):
            store.force_release(claims[number].key)

        answers = store.renew(wishes)

        lost = [number for number, answer in enumerate(answers) if isinstance(answer, Gone)]
        assert len(answers) == len(wishes)
        assert lost == [0, 99, 100, 249]

    def test_nothing_to_renew_is_no_question(self, store: Store) -> None:
        assert store.renew([]) == []

    def test_a_lease_that_another_owner_has_is_gone_and_stays_untouched(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = claim_of(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        successor = claim_of(ttl=TTL)
        granted(store, successor)
        before = holder_of(store, claim.key)

        answer = renew(store, claim, grant)

        assert isinstance(answer, Gone)
        assert answer.reason == "taken"
        assert answer.holder is not None
        assert answer.holder.owner == successor.owner
        assert ttl_left(store, claim.key) > SHORT
        assert holder_of(store, claim.key).token == before.token

    def test_a_lease_whose_key_was_taken_and_freed_is_superseded(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = claim_of(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        successor = claim_of()
        store.release(successor, granted(store, successor).token)

        assert renew(store, claim, grant) == Gone("superseded")
        assert store.holder(claim.key) is None

    def test_a_vanished_lease_is_put_back_as_it_was(
        self, store: Store, lose_everything: Callable[[], None]
    ) -> None:
        claim = replace(claim_of(), facts=Facts(task_name="billing.sync"))
        grant = granted(store, claim)
        lose_everything()

        assert renew(store, claim, grant) == Kept(reinstated=True)
        holder = holder_of(store, claim.key)
        assert (holder.owner, holder.token) == (claim.owner, grant.token)
        assert (holder.since, holder.facts) == (grant.since, claim.facts)
        assert renew(store, claim, grant) == Kept()

    def test_a_token_is_greater_than_that_of_a_lease_which_was_put_back(
        self, store: Store, lose_everything: Callable[[], None]
    ) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        lose_everything()
        renew(store, claim, replace(grant, token=grant.token + 10**9))
        store.release(claim, grant.token)

        assert granted(store, claim_of()).token > grant.token + 10**9

    def test_an_expired_lease_that_nobody_took_is_put_back(self, store: Store, pass_time: PassTime) -> None:
        claim = claim_of(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)

        assert renew(store, claim, grant) == Kept(reinstated=True)
        assert holder_of(store, claim.key).token == grant.token

    def test_a_late_renewal_doesn_t_bring_a_released_lease_back(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        store.release(claim, grant.token)

        assert renew(store, claim, grant) == Gone("released")
        assert store.holder(claim.key) is None

    def test_a_late_renewal_of_an_owner_s_old_token_is_gone(self, store: Store, pass_time: PassTime) -> None:
        claim = claim_of(ttl=SHORT)
        old = granted(store, claim)
        expire(store, claim.key, pass_time)
        new = granted(store, replace(claim, ttl=TTL))

        assert renew(store, claim, old) == Gone("superseded")
        assert holder_of(store, claim.key).token == new.token
