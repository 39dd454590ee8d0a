"""What `Store.release` and `Store.force_release` promise."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from collections.abc import Callable

from celery_fence.locking.store import Ended, ForceReleased, Gone, Held, Kept, Released, Store
from celery_fence.testing.contract.asking import (
    SHORT,
    Asking,
    PassTime,
    claim_of,
    expire,
    granted,
    holder_of,
    renew,
)


class ReleaseContract(Asking):
    """Release: free the key if it is still this owner's."""

    def test_a_released_key_is_free(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)

        assert store.release(claim, grant.token) == Released()
        assert store.holder(claim.key) is None
        granted(store, claim_of())

    def test_asked_again_it_answers_the_same(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)

        assert store.release(claim, grant.token) == store.release(claim, grant.token) == Released()

    def test_asked_again_it_doesn_t_touch_the_successor(self, store: Store) -> None:
        claim, successor = claim_of(), claim_of()
        grant = granted(store, claim)
        store.release(claim, grant.token)
        granted(store, successor)

        assert store.release(claim, grant.token) == Released()
        assert holder_of(store, claim.key).owner == successor.owner

    def test_a_key_that_another_owner_has_is_gone_and_stays_untouched(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = claim_of(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        successor = claim_of()
        granted(store, successor)

        answer = store.release(claim, grant.token)

        assert isinstance(answer, Gone)
        assert answer.reason == "taken"
        assert answer.holder is not None
        assert answer.holder.owner == successor.owner
        assert holder_of(store, claim.key).owner == successor.owner

    def test_a_key_that_was_taken_and_freed_is_gone(self, store: Store, pass_time: PassTime) -> None:
        claim = claim_of(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        successor = claim_of()
        store.release(successor, granted(store, successor).token)

        assert store.release(claim, grant.token) == Gone("superseded")

    def test_a_lease_that_expired_without_a_successor_is_released(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = claim_of(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)

        assert store.release(claim, grant.token) == Released()
        assert store.acquire(claim) == Ended()

    def test_a_release_without_the_token_frees_the_owner_s_key(self, store: Store) -> None:
        claim = claim_of()
        granted(store, claim)

        assert store.release(claim, 0) == Released()
        assert store.holder(claim.key) is None

    def test_a_release_without_the_token_keeps_a_question_under_way_from_being_granted(
        self, store: Store
    ) -> None:
        """Interrupted as it asked: what it gave back arrives first, and then what it had asked."""
        claim = claim_of()

        assert store.release(claim, 0) == Released()
        assert store.acquire(claim) == Ended()
        assert store.holder(claim.key) is None

    def test_a_release_without_the_token_lets_no_renewal_undo_an_earlier_release(self, store: Store) -> None:
        earlier = claim_of()
        grant = granted(store, earlier)
        store.release(earlier, grant.token)
        store.release(claim_of(), 0)

        assert renew(store, earlier, grant) == Gone("superseded")
        assert store.holder(earlier.key) is None
        assert granted(store, claim_of()).token > grant.token

    def test_a_release_without_the_token_leaves_the_key_of_another_owner_alone(self, store: Store) -> None:
        holder, stranger = claim_of(), claim_of()
        grant = granted(store, holder)

        answer = store.release(stranger, 0)

        assert isinstance(answer, Gone)
        assert answer.reason == "taken"
        assert renew(store, holder, grant) == Kept()


class ForceReleaseContract(Asking):
    """Force release: free the key whoever has it, and fence that holder off for good."""

    def test_it_frees_the_key_and_says_who_had_it(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)

        answer = store.force_release(claim.key)

        assert isinstance(answer, ForceReleased)
        assert answer.holder is not None
        assert (answer.holder.owner, answer.holder.token) == (claim.owner, grant.token)
        assert store.holder(claim.key) is None

    def test_the_old_holder_can_neither_renew_nor_release(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        store.force_release(claim.key)

        assert renew(store, claim, grant) == Gone("force_released")
        assert store.release(claim, grant.token) == Gone("force_released")
        assert store.holder(claim.key) is None

    def test_the_next_token_is_higher(self, store: Store) -> None:
        grant = granted(store, claim_of())
        store.force_release(claim_of().key)

        assert granted(store, claim_of()).token > grant.token

    def test_a_free_key_stays_free(self, store: Store) -> None:
        assert store.force_release("tenant:7:sync") == ForceReleased(None)
        assert store.holder("tenant:7:sync") is None
        granted(store, claim_of())

    def test_a_holder_whose_lease_had_vanished_is_fenced_off_too(
        self, store: Store, lose_everything: Callable[[], None], pass_time: PassTime
    ) -> None:
        claim = claim_of()
        grant = granted(store, claim)
        lose_everything()
        pass_time(0.001)
        store.force_release(claim.key)

        assert renew(store, claim, grant) == Gone("force_released")
        assert store.holder(claim.key) is None

    def test_with_another_owner_it_changes_nothing(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)

        answer = store.force_release(claim.key, owner="somebody who held it before")

        assert isinstance(answer, Held)
        assert answer.holder.owner == claim.owner
        assert renew(store, claim, grant) == Kept()

    def test_with_the_holder_s_owner_it_frees_the_key(self, store: Store) -> None:
        claim = claim_of()
        grant = granted(store, claim)

        answer = store.force_release(claim.key, owner=claim.owner)

        assert isinstance(answer, ForceReleased)
        assert renew(store, claim, grant) == Gone("force_released")
