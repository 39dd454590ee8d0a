"""
I1 and G1: whose effects interleave, and who trusts a key at the same time as somebody else.

What breaks a promise is found; what only looks like it isn't. The histories are made by hand (`story.py`).
"""

from __future__ import annotations

import pytest
from story import TRUST, TTL

# --- I1: accepted writes of a key form blocks ----------------------------------------------------


def test_a_write_into_the_block_of_another_grant_breaks_exclusion_of_effects(story):
    story.write("a", 1)
    story.write("b", 2)
    story.write("a", 1)

    assert "I1" in story.broken()


def test_two_owners_with_one_token_that_take_turns_break_exclusion_of_effects(story):
    story.write("a", 5)
    story.write("b", 5)
    story.write("a", 5)

    assert "I1" in story.broken()


def test_several_writes_of_one_grant_are_one_block(story):
    for owner, token in (("a", 1), ("a", 1), ("b", 2), ("b", 2)):
        story.write(owner, token)

    assert story.violations() == []


# --- G1: two owners never trust one key at the same time -----------------------------------------


def test_a_grant_while_another_owner_trusts_the_key_breaks_exclusion(story):
    story.grant("a", 1, at=1.0)
    story.grant("b", 2, at=1.0 + TRUST - 0.1)

    assert story.broken() == {"G1"}


def test_renewed_trust_counts_from_the_renewal(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.8)
    story.grant("b", 2, at=2.5)

    assert story.broken() == {"G1"}


def test_a_grant_after_the_trust_has_ended_breaks_nothing(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.5, answer="error")
    story.grant("b", 2, at=1.0 + TRUST + 0.001)

    assert story.violations() == []


def test_a_grant_after_the_other_owner_asked_for_its_release_breaks_nothing(story):
    story.grant("a", 1, at=1.0)
    story.release("a", at=1.2, answer=None)
    story.grant("b", 2, at=1.201, took=0.001)

    assert story.violations() == []


def test_a_grant_while_a_paused_owner_still_means_to_hold_breaks_nothing_once_its_deadline_is_over(story):
    story.grant("a", 1, at=1.0)
    story.grant("b", 2, at=2.1)
    story.renew("a", at=2.2, answer="gone", given={"reason": "taken", "holder": "b"})
    story.lost("a", at=2.22, reason="taken")

    assert story.violations() == []


@pytest.mark.parametrize(("name", "facts"), [("F4", {"loses_data": True}), ("F10", {"target": "server"})])
def test_exclusion_is_not_asked_for_where_the_server_lost_its_data_or_its_clock(story, name, facts):
    story.grant("a", 1, at=1.0)
    story.fault(name, 1.2, 1.3, **facts)
    story.grant("b", 2, at=1.5)

    assert story.violations() == []


def test_a_fault_that_was_over_before_excuses_nothing(story):
    story.fault("F4", 0.2, 0.3, loses_data=True)
    story.fault("F5", 1.2, 1.3)
    story.fault("F4", 4.2, 4.3, loses_data=True)
    story.fault("F10", 4.2, 4.3, target="server")
    story.grant("a", 1, at=1.0)
    story.grant("b", 2, at=1.5)

    assert story.broken() == {"G1"}


def test_an_answer_that_comes_after_its_trust_has_ended_opens_no_window(story):
    story.grant("a", 1, at=1.0, took=2.0)
    story.grant("b", 2, at=2.5)

    assert story.violations() == []


def test_a_force_release_before_or_after_excuses_nothing(story):
    for moment in (0.5, 3.0):
        story.ask("force_release", "", moment, "released")
    story.grant("a", 1, at=1.0)
    story.grant("b", 2, at=1.3)

    assert story.broken() == {"G1"}


def test_a_key_that_was_force_released_may_be_granted_at_once(story):
    story.grant("a", 1, at=1.0)
    story.ask("force_release", "", 1.2, "released")
    story.grant("b", 2, at=1.3)

    assert story.violations() == []


def test_a_lease_that_is_gone_before_its_ttl_is_over_breaks_exclusion(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.4)
    story.renew("a", at=1.8, answer="gone", given={"reason": "superseded"})

    assert story.broken() == {"G1"}


def test_a_release_that_finds_its_lease_gone_before_its_ttl_is_over_breaks_exclusion(story):
    story.grant("a", 1, at=1.0)
    story.release("a", at=1.5, answer="gone", given={"reason": "superseded"})

    assert story.broken() == {"G1"}


def test_a_release_that_was_perhaps_asked_twice_may_find_the_key_used_by_somebody_else_meanwhile(story):
    """The first reply was lost; another owner came and went before the client asked again."""
    story.grant("a", 1, at=1.0)
    story.release("a", at=1.2, took=0.1, answer="gone", given={"reason": "superseded"})

    assert story.violations() == []


def test_a_second_release_may_find_the_key_taken(story):
    """The pool child released, and its parent once more when the child was dead."""
    story.grant("a", 1, at=1.0)
    story.release("a", at=1.2)
    story.grant("b", 2, at=1.22)
    story.release("a", at=1.3, answer="gone", given={"reason": "taken", "holder": "b"}, pid=2)

    assert story.violations() == []


def test_a_question_that_failed_gives_no_life(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.8, answer="error")
    story.renew("a", at=2.1, answer="gone", given={"reason": "superseded"})

    assert story.violations() == []


def test_a_question_that_is_answered_later_gives_no_life_before(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.5, took=1.0)
    story.renew("a", at=2.2, answer="gone", given={"reason": "superseded"})

    assert story.violations() == []


def test_what_was_never_held_may_be_gone(story):
    story.release("a", at=1.5, answer="gone", given={"reason": "superseded"})

    assert story.violations() == []


def test_a_lease_may_be_gone_where_the_data_were_lost(story):
    story.grant("a", 1, at=1.0)
    story.fault("F4", 1.3, 1.4, loses_data=True)
    story.renew("a", at=1.6, answer="gone", given={"reason": "superseded"})

    assert story.violations() == []


def test_a_lease_that_nobody_renewed_for_a_ttl_may_be_gone(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.0 + TTL, answer="gone", given={"reason": "superseded"})

    assert story.violations() == []


def test_a_renewal_that_crosses_its_own_release_may_find_the_key_taken(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.2, took=0.1, answer="gone", given={"reason": "taken", "holder": "b"})
    story.release("a", at=1.21)
    story.grant("b", 2, at=1.22)

    assert story.violations() == []
