"""What is promised when data of an earlier moment come back: from a replica that lagged, or an older file."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from typing import NamedTuple

import pytest

from celery_fence.locking.store import Claim, Ending, Gone, Granted, Kept, Raised, Released, Store
from celery_fence.testing.contract.asking import (
    Asking,
    CopyData,
    by_another_owner,
    claim_of,
    delivered,
    ended,
    granted,
    holder_of,
    missed,
    renew,
)


class Run(NamedTuple):
    """Who was granted what."""

    claim: Claim
    grant: Granted


class OlderDataContract(Asking):
    """A holder whose predecessor is back in the store: the smaller token gives way."""

    @pytest.fixture
    def runs(self, store: Store, copy_data: CopyData) -> tuple[Run, Run]:
        """A run that has ended, whose lease has come back; and its successor of the same delivery, at work."""
        first = delivered()
        earlier = Run(first, granted(store, first))
        bring_back = copy_data()
        store.release(first, earlier.grant.token)
        second = by_another_owner(first)
        later = Run(second, granted(store, second))
        bring_back()
        assert holder_of(store, first.key).owner == first.owner
        return earlier, later

    def test_the_newer_lease_is_put_back_over_the_older_one(
        self, store: Store, runs: tuple[Run, Run]
    ) -> None:
        _, (claim, grant) = runs

        assert renew(store, claim, grant) == Kept(reinstated=True)
        holder = holder_of(store, claim.key)
        assert (holder.owner, holder.token, holder.since) == (claim.owner, grant.token, grant.since)
        assert renew(store, claim, grant) == Kept()

    def test_nothing_of_the_older_lease_is_left_in_the_one_put_back_over_it(
        self, store: Store, copy_data: CopyData
    ) -> None:
        earlier, claim = delivered(message="m1"), claim_of()
        token = granted(store, earlier).token
        bring_back = copy_data()
        store.release(earlier, token)
        grant = granted(store, claim)
        bring_back()
        renew(store, claim, grant)

        # It is no copy of that message any more, so a miss on it is decided for good.
        asker = delivered("d2", message="m1", if_held="skipped")
        missed(store, asker)
        assert ended(store, asker).ending == Ending("skipped")

    def test_the_owner_of_the_older_lease_is_told_that_it_was_taken(
        self, store: Store, runs: tuple[Run, Run]
    ) -> None:
        (older, old), (claim, grant) = runs
        assert renew(store, older, old) == Kept()
        renew(store, claim, grant)

        answer = renew(store, older, old)
        assert isinstance(answer, Gone)
        assert answer.reason == "taken"
        assert answer.holder is not None
        assert (answer.holder.owner, answer.holder.token) == (claim.owner, grant.token)
        assert renew(store, claim, grant) == Kept()

    def test_whoever_asks_meanwhile_waits_for_either(self, store: Store, runs: tuple[Run, Run]) -> None:
        (older, _), (claim, grant) = runs

        assert missed(store, claim_of()).holder.owner == older.owner
        renew(store, claim, grant)
        assert missed(store, claim_of()).holder.owner == claim.owner

    def test_a_release_frees_the_key_and_the_older_lease_is_gone_for_good(
        self, store: Store, runs: tuple[Run, Run]
    ) -> None:
        (older, old), (claim, grant) = runs

        assert store.release(claim, grant.token) == store.release(claim, grant.token) == Released()
        assert store.holder(claim.key) is None
        assert renew(store, older, old) == Gone("superseded")
        assert granted(store, claim_of()).token > grant.token

    def test_the_end_of_a_run_is_remembered_although_an_older_copy_has_the_key(
        self, store: Store, runs: tuple[Run, Run]
    ) -> None:
        _, (claim, grant) = runs
        store.release(claim, grant.token, Ending("returned", b"42"))

        assert ended(store, claim).ending == Ending("returned", b"42")

    def test_a_newer_token_than_the_asker_s_stands_in_the_way_of_both(
        self, store: Store, runs: tuple[Run, Run]
    ) -> None:
        (older, old), (claim, grant) = runs
        assert store.raise_counter(older, old.token, grant.token + 1) == Raised()

        assert renew(store, claim, grant) == Gone("superseded")
        assert store.release(claim, grant.token) == Gone("superseded")
        assert holder_of(store, claim.key).owner == older.owner

    def test_a_newer_lease_is_never_given_up_for_an_older_one(
        self, store: Store, runs: tuple[Run, Run]
    ) -> None:
        (older, old), (claim, _) = runs
        store.force_release(claim.key)
        newcomer = claim_of()
        granted(store, newcomer)

        for run in runs:
            assert renew(store, *run) != Kept(reinstated=True)
        assert store.release(older, old.token) != Released()
        assert holder_of(store, claim.key).owner == newcomer.owner
