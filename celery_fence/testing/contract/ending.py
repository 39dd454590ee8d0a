"""What `Store.release` promises about how a delivery ended: whose word counts."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fence.locking.store import (
    Ending,
    Gone,
    Note,
    Released,
    Store,
)
from celery_fence.testing.contract.asking import (
    SHORT,
    Asking,
    PassTime,
    by_another_owner,
    delivered,
    ended,
    expire,
    granted,
    holder_of,
    renew,
    run,
)


class EndingContract(Asking):
    """Release with an ending: the first end of a delivery stands, and no lost run overwrites its successor's."""

    def test_asked_again_it_answers_the_same_and_what_is_remembered_stays(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = delivered()
        grant = granted(store, claim)
        first = store.release(claim, grant.token, Ending("returned", b"1"))
        pass_time(SHORT)

        assert store.release(claim, grant.token, Ending("failed")) == first == Released()
        assert ended(store, claim).ending == Ending("returned", b"1")
        assert ended(store, claim).age >= SHORT * 0.9

    def test_an_ending_that_comes_after_a_bare_release_is_remembered(self, store: Store) -> None:
        """Whoever is interrupted gives back what it has, and then says how it ended."""
        claim = delivered()
        run(store, claim, None)

        assert store.release(claim, 0, Ending("failed")) == Released()
        assert ended(store, claim).ending == Ending("failed")

    def test_a_late_ending_is_not_remembered_while_a_copy_holds_the_key(self, store: Store) -> None:
        claim = delivered()
        run(store, claim, None)
        copy = by_another_owner(claim)
        grant = granted(store, copy)

        assert store.release(claim, 0, Ending("failed")) == Released()
        assert store.release(copy, grant.token, Ending("returned")) == Released()
        assert ended(store, claim).ending == Ending("returned")

    def test_the_end_of_a_run_whose_lease_expired_without_a_successor_is_remembered(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = delivered(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)

        assert store.release(claim, grant.token, Ending("returned", b"1")) == Released()
        assert ended(store, claim).ending == Ending("returned", b"1")

    def test_the_end_of_a_run_whose_key_other_work_took_is_remembered(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim, other = delivered(ttl=SHORT), delivered("d2", message="m2")
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        granted(store, other)

        answers = [store.release(claim, grant.token, Ending(how)) for how in ("returned", "failed")]

        assert [(answer.reason, answer.ended) for answer in answers if isinstance(answer, Gone)] == [
            ("taken", False),
            ("taken", False),
        ]
        assert ended(store, claim).ending == Ending("returned")
        assert holder_of(store, claim.key).owner == other.owner

    def test_the_end_of_a_run_that_was_superseded_is_remembered(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim, other = delivered(ttl=SHORT), delivered("d2")
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        run(store, other, None)

        assert store.release(claim, grant.token, Ending("returned")) == Gone("superseded")
        assert ended(store, claim).ending == Ending("returned")

    def test_the_end_of_a_run_that_was_fenced_off_by_force_is_remembered(self, store: Store) -> None:
        claim = delivered()
        grant = granted(store, claim)
        store.force_release(claim.key)

        assert store.release(claim, grant.token, Ending("returned")) == Gone("force_released")
        assert ended(store, claim).ending == Ending("returned")

    def test_the_end_of_a_lost_run_is_not_remembered_while_a_copy_holds_the_key(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = delivered(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        copy = replace(by_another_owner(claim), ttl=30.0)
        copys_grant = granted(store, copy)

        answer = store.release(claim, grant.token, Ending("failed"))

        assert isinstance(answer, Gone)
        assert (answer.reason, answer.ended) == ("taken", False)
        store.release(copy, copys_grant.token, None)
        granted(store, by_another_owner(claim))

    def test_it_is_not_remembered_either_while_a_copy_holds_a_key_that_was_put_back(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = delivered(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        copy = by_another_owner(claim)
        copys_grant = granted(store, copy)
        expire(store, claim.key, pass_time)
        renew(store, replace(copy, ttl=30.0), copys_grant)

        store.release(claim, grant.token, Ending("failed"))

        store.release(copy, copys_grant.token, None)
        granted(store, by_another_owner(claim))

    @pytest.mark.parametrize("ending", [Ending("failed"), None])
    def test_a_lost_run_is_told_that_a_copy_ended_its_delivery_and_changes_nothing(
        self, store: Store, pass_time: PassTime, ending: Ending | None
    ) -> None:
        claim = delivered(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        run(store, replace(by_another_owner(claim), ttl=30.0), Ending("returned", b"copy"))

        answers = [store.release(claim, grant.token, ending) for _ in range(2)]

        assert answers == [Gone("superseded", ended=True)] * 2
        assert ended(store, claim).ending == Ending("returned", b"copy")

    def test_the_end_that_the_key_s_holder_brings_counts_more_than_that_of_a_lost_run(
        self, store: Store, pass_time: PassTime
    ) -> None:
        """A lost run ended while its copy's lease had vanished; then the copy itself ends, rightfully."""
        claim = delivered(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        copy = by_another_owner(claim)
        copys_grant = granted(store, copy)
        expire(store, claim.key, pass_time)
        store.release(claim, grant.token, Ending("returned", b"lost"))
        assert ended(store, claim).ending == Ending("returned", b"lost")

        assert store.release(copy, copys_grant.token, Ending("retried")) == Released()
        assert ended(store, claim).ending == Ending("retried")

    def test_a_run_whose_lease_expired_is_told_that_another_one_ended_its_delivery(
        self, store: Store, pass_time: PassTime
    ) -> None:
        """Both lost their lease, and nobody has the key: the second is rightful, but the first end is complete."""
        claim = delivered(ttl=SHORT)
        grant = granted(store, claim)
        expire(store, claim.key, pass_time)
        copy = by_another_owner(claim)
        copys_grant = granted(store, copy)
        expire(store, claim.key, pass_time)
        store.release(claim, grant.token, Ending("failed"))
        store.note([Note(claim.key, claim.delivery, "failed", claim.retention)])

        answers = [store.release(copy, copys_grant.token, Ending("returned")) for _ in range(2)]

        assert answers == [Released(ended=True)] * 2
        assert ended(store, claim).ending == Ending("failed")
