"""What a store promises about records that are deleted: the work may be done again."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from dataclasses import replace

from celery_fence.locking.store import Store
from celery_fence.testing.contract.asking import Asking, granted, run
from celery_fence.testing.contract.once import FACTS, RETURNED, done, once, record_of, recording


class RecordDeletionContract(Asking):
    """A record is deleted whoever made it, or only where it is the claim of one owner."""

    def test_a_dead_claim_can_be_deleted_by_its_owner_s_name_only(self, store: Store) -> None:
        claim = once(key="a")
        granted(store, claim)
        power = recording(store)

        left = power.delete_record("payment:7", "somebody else")
        assert left is not None
        assert record_of(store).owner == claim.owner
        deleted = power.delete_record("payment:7", claim.owner)
        assert deleted is not None
        assert replace(deleted, left=0) == replace(left, left=0)
        granted(store, once(key="b"))

    def test_what_is_done_is_not_deleted_as_a_claim(self, store: Store) -> None:
        claim = once()
        run(store, claim, RETURNED)

        answer = recording(store).delete_record("payment:7", claim.owner)

        assert answer is not None
        assert answer.done is not None
        assert done(store, once()).value == b"5"

    def test_a_deleted_record_lets_the_work_be_done_again(self, store: Store) -> None:
        run(store, once(), RETURNED)
        power = recording(store)

        answer = power.delete_record("payment:7")

        assert answer is not None
        assert (answer.value, answer.size) == (None, 1)
        assert power.delete_record("payment:7") is None
        assert list(power.records()) == []
        granted(store, once())

    def test_a_deleted_claim_is_completed_by_its_holder_all_the_same(self, store: Store) -> None:
        claim = once()
        grant = granted(store, claim)
        recording(store).delete_record("payment:7")
        store.release(claim, grant.token, RETURNED)

        record = done(store, once())
        assert (record.owner, record.token, record.facts) == (claim.owner, grant.token, FACTS)
