"""What a store promises about deliveries that have ended: their copies are not granted the key."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_fence.errors import ConfigError
from celery_fence.locking.store import (
    DeliveryEnded,
    Ending,
    Note,
    Store,
)
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
    ended,
    granted,
    holder_of,
    run,
)


class EndedDeliveryContract(Asking):
    """A delivery whose body has ended under its lease is not granted again."""

    @pytest.mark.parametrize("how", ["returned", "failed", "retried", "replaced", "ignored", "rejected"])
    def test_a_copy_of_an_ended_delivery_is_told_how_it_ended(self, store: Store, how: str) -> None:
        claim = delivered()
        run(store, claim, Ending(how))

        answer = ended(store, claim)

        assert (answer.ending, answer.noted, answer.holder) == (Ending(how), False, None)
        assert 0 <= answer.age < DEADLINE
        assert store.holder(claim.key) is None

    @pytest.mark.parametrize("value", [VALUE, b"", None])
    def test_the_value_comes_back_as_it_was(self, store: Store, value: bytes | None) -> None:
        claim = delivered()
        run(store, claim, Ending("returned", value))

        assert ended(store, claim).ending == Ending("returned", value)

    def test_the_age_is_the_time_since_the_end(self, store: Store, pass_time: PassTime) -> None:
        claim = delivered()
        grant = granted(store, claim)
        pass_time(3 * SHORT)
        store.release(claim, grant.token, Ending("returned"))
        pass_time(SHORT)

        assert SHORT * 0.9 <= ended(store, claim).age < 3 * SHORT

    def test_it_is_remembered_while_another_one_holds_the_key(self, store: Store) -> None:
        claim, successor = delivered(), claim_of()
        run(store, claim, Ending("returned"))
        granted(store, successor)

        assert ended(store, claim).ending == Ending("returned")
        assert holder_of(store, claim.key).owner == successor.owner

    def test_it_is_remembered_for_its_retention_and_no_longer(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = replace(delivered(), retention=2 * SHORT)
        run(store, claim, Ending("returned"))
        pass_time(SHORT)
        assert ended(store, claim).ending == Ending("returned")

        pass_time(2 * SHORT)
        granted(store, by_another_owner(claim))

    def test_a_copy_runs_when_everything_was_lost(
        self, store: Store, lose_everything: Callable[[], None]
    ) -> None:
        claim = delivered()
        run(store, claim, Ending("returned"))
        lose_everything()

        granted(store, by_another_owner(claim))

    def test_other_deliveries_of_the_key_run(self, store: Store) -> None:
        run(store, delivered("d1"), Ending("returned"))

        granted(store, delivered("d2"))

    def test_the_same_delivery_has_not_ended_for_another_key(self, store: Store) -> None:
        claim = delivered()
        run(store, claim, Ending("returned"))

        granted(store, replace(by_another_owner(claim), key="tenant:8:sync"))

    def test_without_a_delivery_nothing_is_remembered(self, store: Store) -> None:
        claim = claim_of()
        run(store, claim, Ending("returned", VALUE))

        granted(store, claim_of())

    def test_without_an_ending_nothing_is_remembered(self, store: Store) -> None:
        claim = delivered()
        run(store, claim, None)

        granted(store, by_another_owner(claim))

    def test_no_delivery_is_mistaken_for_another_one(self, store: Store) -> None:
        claims = [delivered(delivery) for delivery in AWKWARD_KEYS]
        claims += [replace(delivered(delivery), key=key) for key, delivery in [("x", "y:z"), ("y:x", "z")]]
        for number, claim in enumerate(claims):
            run(store, claim, Ending("returned", str(number).encode()))

        values = [ended(store, claim).ending.value for claim in claims]

        assert values == [str(number).encode() for number in range(len(claims))]

    def test_an_ended_delivery_s_owner_is_told_so_when_its_question_comes_late(self, store: Store) -> None:
        claim = delivered()
        run(store, claim, Ending("returned"))

        assert isinstance(store.acquire(claim), DeliveryEnded)

    def test_a_holder_that_asks_again_has_its_grant_although_its_delivery_was_ended(
        self, store: Store, pass_time: PassTime
    ) -> None:
        """An earlier run of it lost its lease, and says only now that it has ended."""
        claim = delivered()
        grant = granted(store, claim)
        store.note([Note(claim.key, claim.delivery, "returned", 3600)])
        pass_time(0.001)

        assert store.acquire(claim) == grant

    @pytest.mark.parametrize("retention", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_retention_that_can_t_be_is_refused(self, store: Store, retention: float) -> None:
        claim = replace(delivered(), retention=retention)

        with pytest.raises(ConfigError, match="retention"):
            store.acquire(claim)
        granted(store, replace(claim, delivery=""))
