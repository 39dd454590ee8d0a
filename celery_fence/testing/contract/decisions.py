"""What `Store.acquire` promises to those who decide for good what to do about a miss (`Claim.if_held`)."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence.locking.store import (
    Ended,
    Ending,
    Facts,
    Granted,
    Note,
    Store,
)
from celery_fence.testing.contract.asking import (
    DEADLINE,
    SHORT,
    Asking,
    PassTime,
    by_another_owner,
    claim_of,
    delivered,
    ended,
    expire,
    granted,
    missed,
    renew,
    run,
)


class DecisionContract(Asking):
    """A decision on a miss, made for good, is remembered by the acquire that was told of the miss."""

    @pytest.mark.parametrize("if_held", ["skipped", "dead_lettered", "raised"])
    def test_a_copy_is_told_what_was_decided_and_who_held_the_key(self, store: Store, if_held: str) -> None:
        holder = replace(delivered(), facts=Facts("billing.sync", "id-1", "d1", 3, "höst", 4711))
        granted(store, holder)
        asker = delivered("d2", message="m2", if_held=if_held)
        held = missed(store, asker)

        answer = ended(store, asker)

        assert (answer.ending, answer.noted) == (Ending(if_held), False)
        assert answer.holder == held.holder
        assert answer.holder.facts == holder.facts
        assert answer.age < DEADLINE

    def test_the_asker_gets_the_same_miss_again_also_when_the_key_is_free(
        self, store: Store, pass_time: PassTime
    ) -> None:
        holder, asker = delivered(), delivered("d2", message="m2", if_held="skipped")
        grant = granted(store, holder)
        held = missed(store, asker)
        pass_time(0.01)

        assert store.acquire(asker) == held
        store.release(holder, grant.token)
        assert store.acquire(asker) == held
        granted(store, claim_of())
        assert store.acquire(asker) == held

    def test_the_asker_gets_the_same_miss_again_after_its_copy_was_noted(self, store: Store) -> None:
        granted(store, delivered())
        asker = delivered("d2", message="m2", if_held="skipped")
        held = missed(store, asker)
        store.note([Note(asker.key, asker.delivery, "skipped", 3600)])

        assert store.acquire(asker) == held
        assert ended(store, asker).noted

    def test_the_decision_is_remembered_for_the_retention(self, store: Store, pass_time: PassTime) -> None:
        holder = delivered()
        grant = granted(store, holder)
        asker = replace(delivered("d2", message="m2", if_held="skipped"), retention=SHORT)
        missed(store, asker)
        store.release(holder, grant.token)
        assert ended(store, asker).ending == Ending("skipped")

        pass_time(2 * SHORT)
        granted(store, by_another_owner(asker))

    @pytest.mark.parametrize("delivery", ["d1", "d2"])
    def test_nothing_is_decided_while_the_holder_works_on_the_same_message(
        self, store: Store, delivery: str
    ) -> None:
        """A copy of the holder's delivery, or the retry that its predecessor sent before it ended."""
        holder = delivered("d1", message="m1")
        grant = granted(store, holder)
        asker = delivered(delivery, message="m1", if_held="skipped")

        missed(store, asker)
        missed(store, by_another_owner(asker))
        store.release(holder, grant.token)

        granted(store, asker)

    def test_a_renewed_and_a_reinstated_lease_still_says_what_it_works_on(
        self, store: Store, pass_time: PassTime
    ) -> None:
        holder = delivered("d1", message="m1", ttl=SHORT)
        grant = granted(store, holder)
        asker = delivered("d2", message="m1", if_held="skipped")
        renew(store, holder, grant)
        missed(store, asker)
        expire(store, holder.key, pass_time)
        renew(store, replace(holder, ttl=30.0), grant)

        missed(store, by_another_owner(asker))
        store.force_release(holder.key)

        granted(store, asker)

    def test_who_comes_back_is_granted_the_key_later(self, store: Store) -> None:
        holder, asker = delivered(), delivered("d2", message="m2")
        grant = granted(store, holder)
        missed(store, asker)
        store.release(holder, grant.token)

        assert isinstance(store.acquire(asker), Granted)

    def test_without_a_message_every_other_holder_counts(self, store: Store) -> None:
        granted(store, delivered(message=""))
        asker = delivered("d2", message="", if_held="skipped")
        missed(store, asker)

        assert ended(store, asker).ending == Ending("skipped")

    def test_without_a_delivery_no_decision_is_remembered(self, store: Store) -> None:
        holder, asker = delivered(), delivered("", if_held="skipped", message="m2")
        grant = granted(store, holder)
        missed(store, asker)
        store.release(holder, grant.token)

        granted(store, asker)

    def test_a_free_key_is_granted_whatever_the_asker_would_do_if_it_were_held(self, store: Store) -> None:
        asker = delivered(if_held="skipped")
        run(store, asker, None)

        assert store.acquire(asker) == Ended()
        granted(store, by_another_owner(asker))
