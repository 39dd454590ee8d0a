"""What a store promises about idempotency records: work that was done is not granted again."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_fence.errors import ConfigError
from celery_fence.locking.records import ClaimedElsewhere, Done, Record, Recording
from celery_fence.locking.store import Claim, Ending, Facts, Gone, Held, Released, Store
from celery_fence.testing.contract.asking import (
    AWKWARD_KEYS,
    DEADLINE,
    SHORT,
    VALUE,
    Asking,
    PassTime,
    by_another_owner,
    claim_of,
    delivered,
    expire,
    granted,
    holder_of,
    numbers,
    run,
)

RETURNED = Ending("returned", result=b"5")
FACTS = Facts("shop.pay", "id-1", host="here", pid=7)


def once(
    record: str = "payment:7", *, key: str = "tenant:7", ttl: float = 30.0, facts: Facts = FACTS
) -> Claim:
    """A claim to do the work of an idempotency key, by an owner nobody had before."""
    return replace(claim_of(key, ttl=ttl), record=record, facts=facts, message=f"m{next(numbers)}")


def recording(store: Store) -> Recording:
    """The power that this contract is about."""
    assert isinstance(store, Recording)
    return store


def record_of(store: Store, key: str = "payment:7") -> Record:
    """The record of *key*, which must have one."""
    found = recording(store).record(key)
    assert found is not None
    return found


def done(store: Store, claim: Claim) -> Record:
    """What the work of *claim* has come to, which must be done."""
    answer = store.acquire(claim)
    assert isinstance(answer, Done), answer
    return answer.record


class RecordContract(Asking):
    """The acquire claims a record, the release of a body that returned completes it."""

    @pytest.mark.parametrize("value", [VALUE, b"", None])
    def test_work_that_was_done_is_not_granted_again_and_answered_with_its_value(
        self, store: Store, value: bytes | None
    ) -> None:
        run(store, once(), Ending("returned", result=value))

        record = done(store, once())

        assert (record.value, record.size) == (value, None if value is None else len(value))
        assert store.holder("tenant:7") is None

    def test_the_answer_says_who_did_it_and_when(self, store: Store, pass_time: PassTime) -> None:
        claim = once()
        grant = granted(store, claim)
        pass_time(SHORT)
        store.release(claim, grant.token, RETURNED)

        record = done(store, once())

        assert (record.key, record.lock_key, record.owner, record.token, record.facts) == (
            "payment:7",
            "tenant:7",
            claim.owner,
            grant.token,
            FACTS,
        )
        assert record.claimed == pytest.approx(grant.since, abs=0.001)
        assert record.done is not None
        assert SHORT * 0.9 <= record.done - record.claimed < DEADLINE

    def test_it_is_answered_while_somebody_has_the_key_for_other_work(self, store: Store) -> None:
        run(store, once("order:1"), RETURNED)
        other = once("order:2")
        granted(store, other)

        assert done(store, once("order:1")).value == b"5"
        assert holder_of(store, "tenant:7").owner == other.owner

    def test_other_work_of_the_same_key_is_granted(self, store: Store) -> None:
        run(store, once("order:1"), RETURNED)

        granted(store, once("order:2"))

    def test_work_without_an_idempotency_key_leaves_no_record(self, store: Store) -> None:
        run(store, claim_of("tenant:7"), RETURNED)

        granted(store, claim_of("tenant:7"))
        assert list(recording(store).records()) == []

    @pytest.mark.parametrize("how", ["failed", "retried", "replaced", "ignored", "rejected", "skipped", ""])
    def test_a_body_that_did_not_return_leaves_no_record(self, store: Store, how: str) -> None:
        run(store, once(), Ending(how, b"5", b"5") if how else None)

        assert recording(store).record("payment:7") is None
        granted(store, once())

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

    def test_a_copy_of_an_ended_delivery_is_told_of_the_delivery_first(self, store: Store) -> None:
        """What its epilogue left undone is completed from there."""
        claim = replace(delivered(), record="payment:7")
        run(store, claim, Ending("returned", b"1", b"1"))

        answer = store.acquire(by_another_owner(claim))

        assert type(answer).__name__ == "DeliveryEnded"

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

    def test_work_that_was_done_under_another_key_is_done(self, store: Store) -> None:
        run(store, once(key="a"), RETURNED)

        assert done(store, once(key="b")).lock_key == "a"

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

    def test_a_holder_that_asks_again_leaves_what_another_has_done_meanwhile(self, store: Store) -> None:
        """Its claim was deleted by hand, and the work done under another key."""
        claim = once(key="a")
        grant = granted(store, claim)
        recording(store).delete_record("payment:7")
        run(store, once(key="b"), RETURNED)

        assert store.acquire(claim) == grant
        store.release(claim, grant.token, Ending("failed"))
        assert done(store, once()).value == b"5"

    def test_it_is_kept_for_its_retention_and_no_longer(self, store: Store, pass_time: PassTime) -> None:
        claim = replace(once(), record_retention=3 * SHORT)
        run(store, claim, RETURNED)
        assert 0 < record_of(store).left < 3.1 * SHORT
        pass_time(SHORT)
        done(store, once())

        pass_time(3 * SHORT)
        assert recording(store).record("payment:7") is None
        assert list(recording(store).records()) == []
        granted(store, once())

    def test_a_run_longer_than_the_retention_is_recorded_at_its_end(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = replace(once(), record_retention=SHORT)
        grant = granted(store, claim)
        pass_time(2 * SHORT)
        assert recording(store).record("payment:7") is None
        store.release(replace(claim, record_retention=30.0), grant.token, RETURNED)

        assert done(store, once()).value == b"5"

    def test_all_are_listed_without_their_values(self, store: Store) -> None:
        run(store, once("order:1"), RETURNED)
        run(store, once("order:2"), Ending("returned"))
        claim = once("order:3")
        granted(store, claim)

        found = {record.key: record for record in recording(store).records()}

        assert [found[key].value for key in sorted(found)] == [None] * 3
        assert [found[key].size for key in sorted(found)] == [1, None, None]
        assert [found[key].done is not None for key in sorted(found)] == [True, True, False]
        assert found["order:3"].owner == claim.owner

    def test_no_idempotency_key_is_mistaken_for_another_one_nor_for_a_lock_key(self, store: Store) -> None:
        for number, key in enumerate(AWKWARD_KEYS):
            run(store, once(key, key=key), Ending("returned", result=str(number).encode()))

        values = [done(store, once(key, key="another")).value for key in AWKWARD_KEYS]

        assert values == [str(number).encode() for number in range(len(AWKWARD_KEYS))]
        assert {record.key for record in recording(store).records()} == set(AWKWARD_KEYS)
        for key in AWKWARD_KEYS:
            granted(store, claim_of(key))

    def test_nothing_is_known_when_everything_was_lost(
        self, store: Store, lose_everything: Callable[[], None]
    ) -> None:
        run(store, once(), RETURNED)
        lose_everything()

        granted(store, once())

    @pytest.mark.parametrize("retention", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_record_retention_that_can_t_be_is_refused(self, store: Store, retention: float) -> None:
        claim = replace(once(), record_retention=retention)

        with pytest.raises(ConfigError, match="record_retention"):
            store.acquire(claim)
        granted(store, replace(claim, record=""))
