"""What `Store.acquire` promises."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from celery_fence.errors import ConfigError
from celery_fence.locking.store import Claim, Ended, Facts, Granted, Held, Store
from celery_fence.testing.contract.asking import (
    AWKWARD_KEYS,
    DEADLINE,
    SHORT,
    TTL,
    Asking,
    PassTime,
    claim_of,
    expire,
    granted,
    holder_of,
    ttl_left,
)


class AcquireContract(Asking):
    """Acquire: take the key if nobody has it, and issue a token that only grows."""

    def test_a_free_key_is_granted(self, store: Store) -> None:
        grant = granted(store, claim_of())

        assert grant.token > 0
        assert isinstance(grant.token, int)

    def test_a_held_key_is_not_granted_and_the_answer_says_who_has_it(self, store: Store) -> None:
        facts = Facts("billing.sync", "id-1", "delivery-1", 3, "höst", 4711)
        first = replace(claim_of(), facts=facts)
        grant = granted(store, first)

        answer = store.acquire(claim_of())

        assert isinstance(answer, Held)
        holder = answer.holder
        assert (holder.key, holder.owner, holder.token) == (first.key, first.owner, grant.token)
        assert holder.facts == facts
        assert holder.since == grant.since
        assert holder.ttl_left is not None
        assert TTL - DEADLINE < holder.ttl_left <= TTL
        assert 0 <= holder.beat_age < DEADLINE

    def test_each_token_of_a_key_is_greater_than_every_earlier_one(self, store: Store) -> None:
        tokens = []
        for _ in range(50):
            claim = claim_of()
            tokens.append(granted(store, claim).token)
            store.release(claim, tokens[-1])

        assert tokens == sorted(set(tokens))

    def test_a_token_is_greater_after_an_expiry(self, store: Store, pass_time: PassTime) -> None:
        first = granted(store, claim_of(ttl=SHORT))
        expire(store, claim_of().key, pass_time)

        assert granted(store, claim_of()).token > first.token

    def test_a_token_is_greater_after_everything_was_lost(
        self, store: Store, lose_everything: Callable[[], None], pass_time: PassTime
    ) -> None:
        first = granted(store, claim_of())
        lose_everything()
        pass_time(0.001)

        assert granted(store, claim_of()).token > first.token

    def test_the_same_owner_gets_the_same_grant_again(self, store: Store) -> None:
        claim = claim_of()

        assert granted(store, claim) == granted(store, claim)

    def test_the_same_owner_gets_the_full_ttl_again(self, store: Store, pass_time: PassTime) -> None:
        claim = claim_of(ttl=5.0)
        granted(store, claim)
        pass_time(SHORT)
        before = ttl_left(store, claim.key)

        granted(store, claim)

        assert before < ttl_left(store, claim.key) <= claim.ttl

    def test_the_same_owner_gets_a_new_token_after_expiry(self, store: Store, pass_time: PassTime) -> None:
        claim = claim_of(ttl=SHORT)
        first = granted(store, claim)
        expire(store, claim.key, pass_time)

        again = granted(store, claim)

        assert again.token > first.token
        assert again.since > first.since

    def test_an_owner_that_released_is_not_granted_again(self, store: Store) -> None:
        claim = claim_of()
        store.release(claim, granted(store, claim).token)

        assert store.acquire(claim) == Ended()
        assert store.holder(claim.key) is None

    def test_an_owner_that_released_has_ended_also_while_another_one_holds(self, store: Store) -> None:
        claim = claim_of()
        store.release(claim, granted(store, claim).token)
        successor = claim_of()
        granted(store, successor)

        assert store.acquire(claim) == Ended()
        assert holder_of(store, claim.key).owner == successor.owner

    def test_of_many_at_once_one_is_granted(self, store: Store) -> None:
        claims = [claim_of() for _ in range(16)]
        start = threading.Barrier(len(claims))

        def race(claim: Claim) -> object:
            start.wait(DEADLINE)
            return store.acquire(claim)

        with ThreadPoolExecutor(len(claims)) as threads:
            answers = list(threads.map(race, claims))

        winners = [answer for answer in answers if isinstance(answer, Granted)]
        losers = [answer for answer in answers if isinstance(answer, Held)]
        assert (len(winners), len(losers)) == (1, 15)
        assert {loser.holder.token for loser in losers} == {winners[0].token}

    def test_no_key_is_mistaken_for_another_one(self, store: Store) -> None:
        claims = [claim_of(key) for key in AWKWARD_KEYS]
        for claim in claims:
            granted(store, claim)

        assert {key: holder_of(store, key).owner for key in AWKWARD_KEYS} == {
            claim.key: claim.owner for claim in claims
        }
        assert {holder.key for holder in store.leases()} >= set(AWKWARD_KEYS)

        store.release(claims[1], 0)
        assert [key for key in AWKWARD_KEYS if store.holder(key) is None] == [claims[1].key]

    @pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_ttl_that_can_t_be_is_refused(self, store: Store, ttl: float) -> None:
        with pytest.raises(ConfigError, match="ttl"):
            store.acquire(claim_of(ttl=ttl))
