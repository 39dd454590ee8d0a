"""What a store promises about work under a lease that its run has already: its record has an end of its own."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence.locking.records import ClaimedElsewhere, Done
from celery_fence.locking.store import Ending, Store
from celery_fence.testing.contract.asking import Asking, claim_of, granted, holder_of
from celery_fence.testing.contract.once import FACTS, RETURNED, done, once, record_of, recording


class RecordUnderLeaseContract(Asking):
    """`claim_record` and `end_record` do for a record what acquire and release do, and leave the lease."""

    def test_work_under_a_lease_that_is_there_already_is_claimed_and_recorded_by_itself(
        self, store: Store
    ) -> None:
        outer = claim_of("tenant:7")
        grant = granted(store, outer)
        power, wish = recording(store), replace(once(), owner=outer.owner)

        assert power.claim_record(wish, grant.token) is None
        claimed = record_of(store)
        assert (claimed.owner, claimed.token, claimed.done, claimed.facts) == (
            outer.owner,
            grant.token,
            None,
            FACTS,
        )
        for _ in range(2):
            power.end_record(wish, grant.token, RETURNED)
        assert done(store, once()).value == b"5"
        assert holder_of(store, "tenant:7").owner == outer.owner
        answer = power.claim_record(wish, grant.token)
        assert isinstance(answer, Done)
        assert answer.record.value == b"5"

    @pytest.mark.parametrize("ending", [None, Ending("failed"), Ending("retried", result=b"5")])
    def test_its_claim_is_dropped_where_its_body_did_not_return(
        self, store: Store, ending: Ending | None
    ) -> None:
        wish = once()
        power = recording(store)
        power.claim_record(wish, 7)
        power.end_record(wish, 7, ending)

        assert power.record("payment:7") is None
        assert list(power.records()) == []

    def test_its_end_leaves_what_another_has_claimed_or_done(self, store: Store) -> None:
        lost, successor, power = once(), once(), recording(store)
        power.claim_record(lost, 7)
        power.claim_record(successor, 8)
        for ending in (None, Ending("returned", result=b"lost")):
            power.end_record(lost, 7, ending)
        assert record_of(store).owner == successor.owner
        power.end_record(successor, 8, RETURNED)
        power.end_record(lost, 7, Ending("returned", result=b"lost"))

        assert done(store, once()).value == b"5"

    def test_its_claim_is_refused_where_another_key_guards_the_work(self, store: Store) -> None:
        granted(store, once(key="a"))

        assert isinstance(recording(store).claim_record(once(key="b"), 7), ClaimedElsewhere)

    def test_its_claim_is_refused_where_a_newer_token_of_the_same_key_has_it(self, store: Store) -> None:
        """It has lost its lease, and hasn't noticed."""
        successor, power = once(), recording(store)
        power.claim_record(successor, 8)

        assert isinstance(power.claim_record(once(), 7), ClaimedElsewhere)
        assert record_of(store).owner == successor.owner

    def test_its_record_says_only_that_it_was_done_where_no_value_is_kept(self, store: Store) -> None:
        wish, power = once(), recording(store)
        power.end_record(wish, 7, Ending("returned"))

        record = done(store, once())
        assert (record.value, record.token, record.lock_key) == (None, 7, "tenant:7")
