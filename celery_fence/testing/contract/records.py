"""What a store promises about idempotency records: work that was done is not granted again."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_fence.errors import ConfigError
from celery_fence.locking.store import Ending, Store
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
    granted,
    holder_of,
    run,
)
from celery_fence.testing.contract.once import FACTS, RETURNED, done, once, record_of, recording


class RecordContract(Asking):
    """A record says what was done, for as long as it is kept; each idempotency key has its own."""

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

    def test_a_copy_of_an_ended_delivery_is_told_of_the_delivery_first(self, store: Store) -> None:
        """What its epilogue left undone is completed from there."""
        claim = replace(delivered(), record="payment:7")
        run(store, claim, Ending("returned", b"1", b"1"))

        answer = store.acquire(by_another_owner(claim))

        assert type(answer).__name__ == "DeliveryEnded"

    def test_work_that_was_done_under_another_key_is_done(self, store: Store) -> None:
        run(store, once(key="a"), RETURNED)

        assert done(store, once(key="b")).lock_key == "a"

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
