"""What `Store.note` promises."""

# ruff: noqa: D102 - the test's name is the sentence

from __future__ import annotations

from dataclasses import replace

from celery_fence.locking.store import (
    Ending,
    Gone,
    Note,
    Released,
    Store,
)
from celery_fence.testing.contract.asking import (
    SHORT,
    VALUE,
    Asking,
    PassTime,
    by_another_owner,
    claim_of,
    delivered,
    ended,
    granted,
    run,
)


class NoteContract(Asking):
    """Note: the epilogue of a delivery is complete."""

    def test_a_noted_delivery_is_remembered_without_its_value(self, store: Store) -> None:
        claim = delivered()
        run(store, claim, Ending("returned", VALUE))

        store.note([Note(claim.key, claim.delivery, "returned", 3600)])

        answer = ended(store, claim)
        assert (answer.ending, answer.noted) == (Ending("returned"), True)

    def test_a_note_changes_neither_how_nor_when_the_delivery_ended(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = replace(delivered(), retention=4 * SHORT)
        run(store, claim, Ending("retried"))
        pass_time(SHORT)
        note = Note(claim.key, claim.delivery, "returned", 3600)

        store.note([note])
        store.note([note])

        assert ended(store, claim).ending == Ending("retried")
        assert ended(store, claim).age >= SHORT * 0.9
        pass_time(4 * SHORT)
        granted(store, by_another_owner(claim))

    def test_a_note_of_an_unknown_delivery_is_remembered_for_its_retention(
        self, store: Store, pass_time: PassTime
    ) -> None:
        claim = delivered()
        store.note([Note(claim.key, claim.delivery, "returned", 2 * SHORT)])

        answer = ended(store, claim)
        assert (answer.ending, answer.noted) == (Ending("returned"), True)
        assert answer.age < SHORT
        pass_time(3 * SHORT)
        granted(store, by_another_owner(claim))

    def test_the_release_that_comes_after_the_note_keeps_it(self, store: Store) -> None:
        """As of a run that lost its key to other work: what it says of its end is no news."""
        claim = delivered()
        grant = granted(store, claim)
        store.force_release(claim.key)
        store.note([Note(claim.key, claim.delivery, "returned", 3600)])

        answer = store.release(claim, grant.token, Ending("returned", VALUE))

        assert answer == Gone("force_released", ended=True)
        assert ended(store, claim).noted

    def test_what_is_complete_stays_so_although_the_key_s_holder_brings_its_end_later(
        self, store: Store
    ) -> None:
        """Its release was lost on the way, and arrives after the note."""
        claim = delivered()
        grant = granted(store, claim)
        store.note([Note(claim.key, claim.delivery, "returned", 3600)])

        assert store.release(claim, grant.token, Ending("returned", VALUE)) == Released(ended=True)
        assert ended(store, claim).noted
        assert ended(store, claim).ending == Ending("returned")

    def test_many_notes_of_many_keys_are_taken_at_once(self, store: Store) -> None:
        claims = [replace(delivered(f"d{number}"), key=f"k{number}") for number in range(250)]
        run(store, claims[0], Ending("returned", VALUE))
        run(store, claims[249], Ending("failed"))

        store.note([Note(claim.key, claim.delivery, "ignored", 3600) for claim in claims])

        answers = [ended(store, claim) for claim in claims]
        assert [answer.noted for answer in answers] == [True] * 250
        hows = [answer.ending for answer in answers]
        assert hows == [Ending("returned"), *[Ending("ignored")] * 248, Ending("failed")]

    def test_without_a_delivery_nothing_is_noted(self, store: Store) -> None:
        store.note([Note("tenant:7:sync", "", "returned", 3600)])

        granted(store, claim_of())

    def test_nothing_to_note_is_no_question(self, store: Store) -> None:
        store.note([])
