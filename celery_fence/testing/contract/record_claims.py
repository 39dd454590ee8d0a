"""What a store promises about claims of idempotency records: one run does the work, and one completes it."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from dataclasses import replace

from celery_fence.locking.records import ClaimedElsewhere
from celery_fence.locking.store import Ending, Gone, Held, Released, Store
from celery_fence.testing.contract.asking import SHORT, Asking, PassTime, expire, granted, run
from celery_fence.testing.contract.once import FACTS, RETURNED, done, once, record_of, recording


class RecordClaimContract(Asking):
    """The acquire claims a record, the release of a body that returned completes it."""

    def test_while_it_runs_others_miss(self, store: Store) -> None:
        claim = once()
        granted(store, claim)
        missed = store.acquire(once())

        assert isinstance(missed, Held)
        assert missed.holder.owner == claim.owner
        assert (record_of(store).owner, record_of(store).done) == (claim.owner, None)

    def test_a_claim_whose_run_died_is_taken_over_with_a_higher_token(
        self, store: Store, pass_time: PassTime
    ) -> None:
        dead = once(ttl=SHORT)
        token = granted(store, dead).token
        expire(store, dead.key, pass_time)
        successor = once()

        assert granted(store, successor).token > token
        assert record_of(store).owner == successor.owner

    def test_a_claim_that_was_taken_over_is_its_successor_s_to_complete(
        self, store: Store, pass_time: PassTime
    ) -> None:
        lost = once(ttl=SHORT)
        token = granted(store, lost).token
        expire(store, lost.key, pass_time)
        successor = once()
        grant = granted(store, successor)

        assert isinstance(store.release(lost, token, Ending("returned", result=b"lost")), Gone)
        assert (record_of(store).owner, record_of(store).done) == (successor.owner, None)
        store.release(successor, grant.token, RETURNED)
        assert done(store, once()).value == b"5"

    def test_a_claim_that_was_taken_over_and_dropped_is_not_completed_by_a_lost_run(
        self, store: Store, pass_time: PassTime
    ) -> None:
        lost = once(ttl=SHORT)
        token = granted(store, lost).token
        expire(store, lost.key, pass_time)
        run(store, once(), Ending("failed"))

        assert isinstance(store.release(lost, token, RETURNED), Gone)
        assert recording(store).record("payment:7") is None

    def test_a_lost_run_completes_a_claim_that_nobody_took_over(
        self, store: Store, pass_time: PassTime
    ) -> None:
        """The key went to other work meanwhile, and the body has returned all the same."""
        lost = once("order:1", ttl=SHORT)
        token = granted(store, lost).token
        expire(store, lost.key, pass_time)
        granted(store, once("order:2"))

        assert isinstance(store.release(lost, token, RETURNED), Gone)
        assert done(store, once("order:1")).value == b"5"

    def test_a_lost_run_that_failed_drops_only_its_own_claim(self, store: Store, pass_time: PassTime) -> None:
        lost = once(ttl=SHORT)
        token = granted(store, lost).token
        expire(store, lost.key, pass_time)
        successor = once()
        granted(store, successor)
        store.release(lost, token, Ending("failed"))

        assert record_of(store).owner == successor.owner

    def test_work_that_was_done_stays_done_whatever_comes_later(
        self, store: Store, pass_time: PassTime
    ) -> None:
        lost = once(ttl=SHORT)
        token = granted(store, lost).token
        expire(store, lost.key, pass_time)
        run(store, once(), RETURNED)
        for ending in (Ending("returned", result=b"late"), Ending("failed"), None):
            store.release(lost, token, ending)

        assert done(store, once()).value == b"5"

    def test_a_run_that_was_fenced_off_by_force_completes_its_own_claim(self, store: Store) -> None:
        claim = once()
        grant = granted(store, claim)
        store.force_release(claim.key)
        store.release(claim, grant.token, RETURNED)

        assert done(store, once()).value == b"5"

    def test_asked_again_each_answers_the_same(self, store: Store) -> None:
        claim = once()
        grant = granted(store, claim)
        assert store.acquire(claim) == grant
        assert record_of(store).owner == claim.owner

        assert [store.release(claim, grant.token, RETURNED) for _ in range(2)] == [Released()] * 2
        repeated = once()
        first = done(store, repeated)
        again = done(store, repeated)
        assert replace(first, left=0) == replace(again, left=0)

    def test_a_bare_release_after_the_end_leaves_what_is_recorded(self, store: Store) -> None:
        """Whoever is interrupted after the release has said how it ended gives back once more."""
        claim = once()
        grant = granted(store, claim)
        store.release(claim, grant.token, RETURNED)
        store.release(claim, 0)

        assert done(store, once()).value == b"5"

    def test_an_end_that_comes_after_a_bare_release_is_recorded_unless_another_claimed(
        self, store: Store
    ) -> None:
        claim, other = once(), once("payment:8", key="tenant:8")
        for each in (claim, other):
            run(store, each, None)
        successor = once("payment:8", key="tenant:8")
        granted(store, successor)
        for each in (claim, other):
            store.release(each, 0, RETURNED)

        assert done(store, once()).value == b"5"
        assert record_of(store, "payment:8").owner == successor.owner

    def test_an_owner_that_has_ended_is_told_so_when_its_question_comes_late(self, store: Store) -> None:
        claim = once()
        run(store, claim, RETURNED)

        answer = store.acquire(claim)

        assert type(answer).__name__ == "Ended"

    def test_a_claim_under_another_key_is_told_and_nothing_is_granted(self, store: Store) -> None:
        claim = once(key="a")
        granted(store, claim)
        answer = store.acquire(once(key="b"))

        assert isinstance(answer, ClaimedElsewhere)
        assert (answer.record.lock_key, answer.record.owner, answer.record.facts) == (
            "a",
            claim.owner,
            FACTS,
        )
        assert store.holder("b") is None
        assert record_of(store).owner == claim.owner

    def test_a_holder_that_asks_again_leaves_what_another_has_done_meanwhile(self, store: Store) -> None:
        """Its claim was deleted by hand, and the work done under another key."""
        claim = once(key="a")
        grant = granted(store, claim)
        recording(store).delete_record("payment:7")
        run(store, once(key="b"), RETURNED)

        assert store.acquire(claim) == grant
        store.release(claim, grant.token, Ending("failed"))
        assert done(store, once()).value == b"5"
