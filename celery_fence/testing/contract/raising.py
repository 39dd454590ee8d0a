"""What `Store.raise_counter` promises: the next token is above one that was seen elsewhere."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from celery_fence.locking.store import Gone, Kept, Raised, Released, Store
from celery_fence.testing.contract.asking import (
    SHORT,
    Asking,
    PassTime,
    claim_of,
    delivered,
    expire,
    granted,
    holder_of,
    renew,
    run,
)

AHEAD = 3600 * 1_000_000


class RaisingContract(Asking):
    """The holder of a key may say that a greater token than its own has been seen."""

    def test_the_next_token_is_above_the_one_that_was_seen(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        seen = grant.token + AHEAD

        assert store.raise_counter(claim, grant.token, seen) == Raised()
        assert store.release(claim, grant.token) == Released()
        assert granted(store, claim_of()).token > seen

    def test_the_holder_keeps_its_lease_and_its_token(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        store.raise_counter(claim, grant.token, grant.token + AHEAD)

        assert renew(store, claim, grant) == Kept()
        assert holder_of(store, claim.key).token == grant.token
        assert store.acquire(claim) == grant
        assert store.raise_counter(claim, grant.token, grant.token + AHEAD) == Raised()

    def test_a_counter_is_never_lowered(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        store.raise_counter(claim, grant.token, grant.token + AHEAD)
        store.raise_counter(claim, grant.token, grant.token - AHEAD)
        store.release(claim, grant.token)

        assert granted(store, claim_of()).token > grant.token + AHEAD

    def test_one_that_lost_the_key_changes_nothing(self, store: Store, pass_time: PassTime) -> None:
        claim = claim_of(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        successor = claim_of()
        theirs = granted(store, successor)

        answer = store.raise_counter(claim, grant.token, theirs.token + AHEAD)

        assert isinstance(answer, Gone)
        assert (answer.reason, answer.holder and answer.holder.owner) == ("taken", successor.owner)
        store.release(successor, theirs.token)
        assert granted(store, claim_of()).token < theirs.token + AHEAD

    def test_one_whose_lease_is_gone_is_told_why(self, store: Store, pass_time: PassTime) -> None:
        expired, closed = claim_of("a", ttl=SHORT), replace(claim_of("b", ttl=SHORT), lost_delay=30.0)
        released, forced = claim_of("c"), claim_of("d")
        tokens = [granted(store, claim).token for claim in (expired, closed, released, forced)]
        store.release(released, tokens[2])
        store.force_release(forced.key)
        expire(store, expired.key, pass_time)
        pass_time(SHORT)

        answers = [
            store.raise_counter(claim, token, token + AHEAD)
            for claim, token in zip((expired, closed, released, forced), tokens, strict=True)
        ]

        assert answers == [Gone("expired"), Gone("expired"), Gone("released"), Gone("force_released")]

    def test_a_token_of_an_earlier_grant_of_the_same_owner_doesn_t_count(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = claim_of(ttl=SHORT)
        before = granted(store, claim)
        expire(store, claim.key, pass_time)
        now = granted(store, replace(claim, ttl=30.0))

        assert store.raise_counter(claim, before.token, now.token + AHEAD) == Gone("superseded")

    def test_a_counter_that_was_lost_is_raised_as_well(
        self, store: Store, lose_everything: Callable[[], None]
    ) -> None:
        run(store, delivered(), None)
        lose_everything()
        claim = claim_of()
        grant = granted(store, claim)

        assert store.raise_counter(claim, grant.token, grant.token + AHEAD) == Raised()
