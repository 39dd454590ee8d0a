"""The checkers on histories made by hand: what breaks a promise is found, what only looks like it isn't."""

from __future__ import annotations

import pytest
from story import KEY, TRUST, TTL, Story


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_run_in_which_everything_goes_well_breaks_nothing(story):
    for number, owner in enumerate(("a", "b"), start=1):
        at = 2.0 * number
        story.published(owner, at - 0.5)
        story.grant(owner, number, at, delivery=owner, message=owner)
        story.start(owner, at + 0.02, token=number)
        story.section(owner, at + 0.3)
        story.write(owner, number)
        story.note(
            "write", at + 0.31, key=KEY, run=f"run-{owner}", effect=f"{owner}:{number}", outcome="accepted"
        )
        story.renew(owner, at + 0.33)
        story.end(owner, at + 0.5)
        story.release(owner, at + 0.51, delivery=owner, how="returned")
        story.outcome(owner, "done", letters=0)
    story.note("healed", 5.0, role="driver")
    story.note("drained", 6.0, role="driver", ok=True, waiting=[])
    for moment, at in (("before", 0.1), ("after", 9.0), ("later", 90.0)):
        story.keys(moment, at, leases=0, counters=2 * (moment == "after"), others=0)

    assert story.violations() == []


# --- I1: accepted writes of a key form blocks ------------------------------------------------


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


# --- G1: two owners never trust one key at the same time -------------------------------------


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


# --- I2: tokens grow -------------------------------------------------------------------------


def test_an_accepted_token_that_goes_down_is_found(story):
    story.write("a", 7)
    story.write("b", 6)

    assert "I2" in story.broken()


def test_a_token_of_two_owners_is_found(story):
    story.write("a", 7)
    story.write("b", 7)

    assert story.broken() == {"I2"}


def test_a_granted_token_that_goes_down_is_found_even_if_all_data_were_lost(story):
    story.grant("a", 7, at=1.0)
    story.fault("F4", 1.5, 1.6, loses_data=True)
    story.grant("b", 1, at=3.0)

    assert story.broken() == {"I2"}


def test_the_highest_token_so_far_counts_not_the_last_one(story):
    for at, token in ((1.0, 9), (3.0, 7), (5.0, 8)):
        story.grant(f"owner-{token}", token, at=at)

    assert [violation.invariant for violation in story.violations()] == ["I2", "I2"]


def test_grants_whose_questions_overlap_may_have_been_given_in_either_order(story):
    story.grant("a", 7, at=1.0, took=3.0)
    story.grant("b", 6, at=1.1, took=0.01)

    assert story.violations() == []


def test_a_token_that_was_granted_to_two_owners_is_found_in_whichever_order(story):
    story.grant("a", 7, at=1.0, took=3.0)
    story.grant("b", 7, at=1.1, took=0.01)

    assert story.broken() == {"I2"}


def test_a_clock_that_stepped_back_alone_excuses_no_lower_token(story):
    story.fault("F10", 0.5, 0.6, target="server", step=-3600.0)
    story.grant("a", 7, at=1.0)
    story.grant("b", 6, at=3.0)

    assert story.broken() == {"I2"}


def test_a_clock_that_stepped_back_and_lost_data_excuse_a_lower_token(story):
    story.fault("F10", 0.5, 0.6, target="server", step=-3600.0)
    story.grant("a", 7, at=1.0)
    story.fault("F4", 1.5, 1.6, loses_data=True)
    story.grant("b", 6, at=3.0)

    assert story.violations() == []


def test_a_worker_with_a_wrong_clock_excuses_nothing(story):
    story.fault("F10", 0.5, None, target="worker:w1", step=-3600.0)
    story.grant("a", 7, at=1.0)
    story.fault("F4", 1.5, 1.6, loses_data=True)
    story.grant("b", 6, at=3.0)

    assert story.broken() == {"I2"}


def test_an_owner_that_asks_again_may_be_given_the_same_token(story):
    story.grant("a", 7, at=1.0)
    story.grant("a", 7, at=1.3)

    assert story.violations() == []


# --- I3: stale writes are refused and counted, and nobody else's -----------------------------


def test_an_accepted_write_below_the_mark_is_found(story):
    story.write("a", 7)
    story.write("b", 8)
    story.write("a", 7)

    assert "I3" in story.broken()


@pytest.mark.parametrize("seen", [5, 8])
def test_a_refusal_of_the_newest_is_found(story, seen):
    """For an older token, or for one that nobody wrote with."""
    story.write("a", 5)
    story.refuse("b", 7, seen=seen)

    assert story.broken() == {"I3"}


def test_a_refusal_of_a_stale_write_is_right(story):
    story.write("b", 8)
    story.refuse("a", 7, seen=8)

    assert story.violations() == []


def test_a_refusal_of_the_other_owner_of_one_token_is_right(story):
    story.write("a", 7)
    story.refuse("b", 7, seen=7)

    assert story.violations() == []


@pytest.mark.parametrize("outcome", ["accepted", "refused"])
def test_a_write_that_the_ledger_knows_nothing_of_is_found(story, outcome):
    story.note("write", 1.0, key=KEY, run="run-a", effect="a:1", outcome=outcome)

    assert story.broken() == {"I3"}


def test_a_write_that_failed_needn_t_be_in_the_ledger(story):
    story.note("write", 1.0, key=KEY, run="run-a", effect="a:1", outcome="error")

    assert story.violations() == []


# --- I4: every message ends in exactly one outcome -------------------------------------------


def test_a_message_without_an_outcome_is_found(story):
    story.published("a", 1.0)
    story.outcome("a", "none")

    assert story.broken() == {"I4"}


def test_a_message_with_two_outcomes_is_found(story):
    story.published("a", 1.0)
    story.outcome("a", "skipped")
    story.outcome("a", "dead_lettered")

    assert story.broken() == {"I4"}


def test_a_message_that_waits_after_the_drain_is_found(story):
    story.note("drained", 9.0, role="driver", ok=False, waiting=["a"])

    assert story.broken() == {"I4"}


def test_a_message_that_is_done_without_a_run_is_found(story):
    story.published("a", 1.0)
    story.start("a", 1.1)
    story.end("a", 1.2, how="error")
    story.outcome("a", "done")

    assert story.broken() == {"I4"}


def _returned_and_then(story: Story, kind: str) -> None:
    story.published("a", 0.5)
    story.grant("a", 1, at=1.0)
    story.start("a", 1.1)
    story.end("a", 1.2)
    story.release("a", 1.3, delivery="d", how="returned")
    story.outcome("a", kind)


def test_a_message_that_returned_and_is_skipped_is_found(story):
    _returned_and_then(story, "skipped")

    assert story.broken() == {"I4"}


@pytest.mark.parametrize(
    ("answer", "facts"),
    [
        ("gone", {"delivery": "d", "how": "returned"}),
        ("released", {"delivery": "d", "how": "retried"}),
        ("released", {"how": "returned"}),
    ],
)
def test_a_run_whose_return_may_not_have_been_remembered_may_be_skipped_next_time(story, answer, facts):
    story.published("a", 0.5)
    story.grant("a", 1, at=1.0)
    story.start("a", 1.1)
    story.release("a", 3.0, answer=answer, given={"reason": "superseded"}, **facts)
    story.outcome("a", "skipped")

    assert story.violations() == []


def test_what_a_server_forgot_may_be_decided_again(story):
    story.fault("F4", 1.4, 1.5, loses_data=True)
    _returned_and_then(story, "skipped")

    assert story.violations() == []


@pytest.mark.parametrize(("kind", "letters"), [("dead_lettered", 0), ("skipped", 1)])
def test_a_dead_letter_that_is_missing_or_too_many_is_found(story, kind, letters):
    story.published("a", 1.0)
    story.outcome("a", kind, letters=letters)

    assert story.broken() == {"I4"}


def test_an_outcome_that_is_written_over_another_is_found(story):
    story.published("a", 1.0)
    story.outcome("a", "failure", first="skipped")

    assert story.broken() == {"I4"}


def test_an_outcome_that_was_seen_before_and_stayed_is_one(story):
    story.published("a", 1.0)
    story.outcome("a", "skipped", first="skipped")

    assert story.violations() == []


def test_every_kind_of_outcome_is_one(story):
    for kind in ("skipped", "dead_lettered", "raised", "lost_failure", "failure"):
        story.published(kind, 1.0)
        story.outcome(kind, kind, letters=int(kind == "dead_lettered"))

    assert story.violations() == []


def test_what_the_broker_lost_is_an_outcome_of_its_own(story):
    story.published("b", 0.5)
    story.outcome("b", "lost_by_broker", letters=1)
    _returned_and_then(story, "lost_by_broker")

    assert story.violations() == []


def test_while_the_run_goes_on_a_missing_outcome_is_no_violation(story):
    story.published("a", 1.0)

    assert story.violations(online=True) == []


# --- I5 and G7: no second run of an ended delivery -------------------------------------------


def _ended(story: Story, how: str, at: float = 2.0) -> None:
    story.grant("a", 1, at=at - 0.5, delivery="d", message="m")
    story.start("a", at - 0.4)
    story.release("a", at, delivery="d", how=how)


@pytest.mark.parametrize("how", ["returned", "retried", "ignored", "rejected"])
def test_a_delivery_that_is_let_in_after_its_end_is_found(story, how):
    _ended(story, how)
    story.grant("b", 2, at=3.0, delivery="d")

    assert story.broken() == {"I5"}


def test_a_body_that_asks_without_its_delivery_and_starts_after_its_end_is_found(story):
    _ended(story, "returned")
    story.ask("acquire", "b", 3.0, "delivery_ended", delivery="d")
    story.grant("b", 2, at=3.1)
    story.start("b", 3.2, token=2)

    assert story.broken() == {"I5"}


def test_a_grant_of_an_ended_delivery_that_runs_nothing_and_asks_without_it_is_allowed(story):
    _ended(story, "failed")
    story.ask("note", "", 2.2, "noted", delivery="d", how="failed")
    story.ask("acquire", "b", 3.0, "delivery_ended", delivery="d")
    story.grant("b", 2, at=3.1)

    assert story.violations() == []


def test_what_has_no_delivery_is_no_copy(story):
    story.grant("a", 1, at=1.0)
    story.release("a", 2.0, how="returned")
    story.grant("b", 2, at=3.0)
    story.start("b", 3.1, token=2)

    assert story.violations() == []


def test_a_copy_of_an_ended_delivery_may_be_told_of_a_miss(story):
    _ended(story, "returned")
    story.grant("c", 2, at=2.9)
    story.miss("b", "c", at=3.0, delivery="d")

    assert story.violations() == []


def test_a_body_that_failed_may_run_again_until_its_epilogue_is_noted(story):
    _ended(story, "failed")
    story.grant("b", 2, at=3.0, delivery="d")

    assert story.violations() == []


def test_a_body_that_failed_may_not_run_again_once_its_epilogue_is_noted(story):
    _ended(story, "failed")
    story.ask("note", "", 2.2, "noted", delivery="d", how="failed")
    story.grant("b", 2, at=3.0, delivery="d")

    assert story.broken() == {"I5"}


def test_a_terminal_decision_that_is_followed_by_a_run_is_found(story):
    story.grant("a", 1, at=1.0, message="m", delivery="c")
    story.miss("b", "a", at=1.1, delivery="d", message="other", if_held="skipped")
    story.release("a", at=1.2)
    story.grant("c", 2, at=3.0, delivery="d", message="other")

    assert story.broken() == {"I5"}


def test_a_decision_about_a_holder_that_nobody_knows_forbids_nothing(story):
    story.miss("b", "somebody", at=1.1, delivery="d", message="other", if_held="skipped")
    story.grant("c", 2, at=3.0, delivery="d", message="other")

    assert "I5" not in story.broken()


def test_a_copy_of_the_holders_own_message_decides_nothing(story):
    story.grant("a", 1, at=1.0, message="m", delivery="d")
    story.miss("b", "a", at=1.1, delivery="d", message="m", if_held="skipped")
    story.grant("c", 2, at=3.0, delivery="d", message="m")

    assert story.violations() == []


@pytest.mark.parametrize("answer", ["error", None, "gone"])
def test_an_end_that_may_not_have_been_remembered_forbids_nothing(story, answer):
    story.grant("a", 1, at=1.0, delivery="d")
    story.release("a", 2.5, answer=answer, delivery="d", how="returned", given={"reason": "superseded"})
    story.grant("b", 2, at=4.0, delivery="d")

    assert story.violations() == []


def test_a_delivery_may_run_again_when_its_end_was_lost_with_the_data(story):
    _ended(story, "returned")
    story.fault("F3", 2.1, 2.5, loses_data=True)
    story.grant("b", 2, at=3.0, delivery="d")

    assert story.violations() == []


def test_a_delivery_may_run_again_after_the_retention(story):
    _ended(story, "returned")
    story.grant("b", 2, at=62.1, delivery="d")

    assert story.violations() == []


def test_a_copy_that_asked_before_the_end_was_remembered_may_have_been_first(story):
    story.grant("b", 1, at=1.0, took=5.0, delivery="d")
    story.grant("a", 2, at=2.5, delivery="d")
    story.release("a", 2.6, delivery="d", how="returned")

    assert story.violations() == []


def test_an_effect_that_is_committed_twice_by_one_run_is_found(story):
    story.write("a", 1, "charge")
    story.write("a", 1, "charge")

    assert story.broken() == {"I5"}


def test_an_effect_that_a_second_run_repeats_after_a_crash_is_allowed(story):
    story.write("a", 1, "charge", run="first")
    story.write("b", 2, "charge", run="second")

    assert story.violations() == []


# --- I6: a key is held by somebody who works on it, or it opens ------------------------------


def test_an_owner_that_is_told_of_itself_is_found_even_during_a_fault(story):
    story.fault("F6", 0.5, 5.0)
    story.miss("a", "a", at=1.0)

    assert story.broken() == {"I6"}


def test_a_holder_that_never_asked_is_found(story):
    story.miss("a", "nobody", at=1.0)

    assert story.broken() == {"I6"}


def test_a_holder_that_had_been_told_of_a_miss_is_found(story):
    story.grant("a", 1, at=1.0)
    story.miss("b", "a", at=1.2)
    story.release("a", at=1.5)
    story.miss("c", "b", at=1.9)

    assert story.broken() == {"I6"}


def test_a_late_copy_of_a_question_that_was_cut_off_may_hold_the_key_for_a_ttl(story):
    story.grant("a", 1, at=1.0)
    story.fault("F6", 1.1, 1.6)
    story.miss("b", "a", at=1.2)
    story.release("a", at=1.5)
    story.miss("c", "b", at=1.9)

    assert story.violations() == []


def test_a_holder_that_gives_no_sign_for_longer_than_the_bound_is_found(story):
    story.grant("a", 1, at=1.0)
    story.miss("b", "a", at=1.1 + TTL + 1.0)

    assert story.broken() == {"I6"}


def test_a_dead_holder_may_keep_the_key_for_its_ttl(story):
    story.grant("a", 1, at=1.0)
    story.miss("b", "a", at=1.0 + TTL)

    assert story.violations() == []


def test_a_holder_that_renews_may_keep_the_key(story):
    story.grant("a", 1, at=1.0)
    for beat in range(1, 10):
        story.renew("a", at=1.0 + 0.4 * beat)
    story.miss("b", "a", at=4.7)

    assert story.violations() == []


def test_a_clock_that_was_moved_back_may_lengthen_a_lease_by_as_much(story):
    story.fault("F10", 0.1, 0.2, target="server", step=-5.0)
    story.grant("a", 1, at=1.0)
    story.miss("b", "a", at=5.0)

    assert story.violations() == []


def test_a_lease_that_is_renewed_long_after_its_body_ended_is_found(story):
    story.grant("a", 1, at=1.0)
    story.start("a", 1.1)
    story.end("a", 1.2)
    story.renew("a", at=1.6)
    story.renew("a", at=1.3 + TTL + 1.0)

    assert story.broken() == {"I6"}


def _silent_heartbeat(story: Story, signs: int, **renewal: object) -> None:
    story.grant("a", 1, at=1.0, pid=7)
    if renewal:
        story.renew("a", 1.3, pid=7, **renewal)
    for number in range(signs):
        story.note("awake", 1.05 + number * 0.85 / signs, pid=7)
    story.lost("a", at=1.0 + TRUST)


def test_a_lease_that_nobody_asked_for_in_an_awake_process_is_found(story):
    _silent_heartbeat(story, signs=20)

    assert story.broken() == {"I6"}


def test_a_heartbeat_that_tried_once_and_never_again_is_found(story):
    _silent_heartbeat(story, signs=20, answer="error")

    assert story.broken() == {"I6"}


def test_a_lease_that_was_lost_by_a_sleeping_process_is_nobodys_fault(story):
    _silent_heartbeat(story, signs=2)

    assert story.violations() == []


def test_a_heartbeat_that_waits_for_an_answer_isn_t_silent(story):
    _silent_heartbeat(story, signs=20, answer="error", took=0.8)

    assert story.violations() == []


def test_a_heartbeat_that_waits_for_the_answer_about_another_lease_isn_t_silent(story):
    story.renew("other", at=1.2, key="other", answer=None, pid=7)
    _silent_heartbeat(story, signs=20)

    assert story.violations() == []


# --- I7: no section begins after the deadline ------------------------------------------------


def test_a_section_after_the_deadline_is_found(story):
    story.grant("a", 1, at=1.0)
    story.section("a", before=1.0 + TRUST + 0.01)

    assert story.broken() == {"I7"}


def test_a_section_before_the_deadline_is_right(story):
    story.grant("a", 1, at=1.0)
    story.section("a", before=1.0 + TRUST - 0.01)

    assert story.violations() == []


def test_a_section_that_was_stopped_after_the_deadline_is_right(story):
    story.grant("a", 1, at=1.0)
    story.section("a", before=3.0, passed=False)

    assert story.violations() == []


def test_a_renewal_that_is_answered_during_the_check_counts(story):
    """The process was paused between reading the clock and checking, and the heartbeat was faster."""
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.95)
    story.section("a", before=1.92, at=2.0)

    assert story.violations() == []


def test_a_renewal_that_is_answered_later_counts_for_nothing(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.85, took=0.5)
    story.section("a", before=1.95)

    assert story.broken() == {"I7"}


def test_a_section_after_the_noticed_loss_is_found(story):
    story.grant("a", 1, at=1.0)
    story.lost("a", at=1.3, reason="taken")
    story.section("a", before=1.4)

    assert story.broken() == {"I7"}


def test_a_section_without_a_lease_is_not_asked_about(story):
    """Outage policy `run`: the body runs without one, and says so."""
    story.note("section", 5.0, run="r", key=KEY, owner=None, token=None, before=5.0, passed=True)

    assert story.violations() == []


# --- I8: order -------------------------------------------------------------------------------


def _overtaking(story: Story) -> None:
    for at, task_id in ((1.0, "a"), (1.1, "b")):
        story.published(task_id, at, name="sync")
        story.outcome(task_id, "skipped")
    story.start("b", 2.0, token=1)
    story.start("a", 3.0, token=2)


def test_a_message_that_overtakes_another_is_found_where_order_is_promised():
    story = Story(ordered=["sync"])
    _overtaking(story)

    assert story.broken() == {"I8"}


def test_order_is_nobodys_right_where_it_isn_t_promised(story):
    _overtaking(story)

    assert story.violations() == []


def test_a_retry_goes_to_the_back_and_overtakes_nobody():
    story = Story(ordered=["sync"])
    for at, task_id in ((1.0, "a"), (1.1, "b")):
        story.published(task_id, at, name="sync")
        story.outcome(task_id, "skipped")
    for at, task_id in ((2.0, "a"), (3.0, "b"), (4.0, "a")):
        story.start(task_id, at, token=int(at))

    assert story.violations() == []


def test_a_start_that_is_noted_late_overtakes_nobody():
    """What counts is the order in which the key was granted."""
    story = Story(ordered=["sync"])
    for at, task_id in ((1.0, "a"), (1.1, "b")):
        story.published(task_id, at, name="sync")
        story.outcome(task_id, "skipped")
    story.start("b", 2.0, token=2)
    story.start("a", 3.0, token=1)

    assert story.violations() == []


# --- I11: nothing is left --------------------------------------------------------------------


@pytest.mark.parametrize(
    "left",
    [
        {"leases": 1},
        {"leases": ["fence:{b01}:lease:tenant"]},
        {"without_expiry": ["x"]},
        {"others": 1},
        {"longest_expiry": 61.0},
    ],
)
def test_what_stays_after_the_drain_is_found(story, left):
    story.note("drained", 1.0, role="driver", ok=True, waiting=[])
    story.keys("after", 4.0, **left)

    assert story.broken() == {"I11"}


def test_counters_and_markers_may_stay_until_the_retention_is_over(story):
    story.note("drained", 1.0, role="driver", ok=True, waiting=[])
    story.keys("before", 0.1)
    story.keys("after", 4.0, leases=0, counters=9, markers=99, indexes=3, longest_expiry=59.9)
    story.keys("later", 70.0, leases=0, counters=0, markers=0, indexes=0)

    assert story.violations() == []


def test_the_lease_of_a_killed_worker_may_stay_for_its_ttl(story):
    story.note("drained", 1.0, role="driver", ok=True, waiting=[])
    story.keys("after", 1.5, leases=1)

    assert story.violations() == []


@pytest.mark.parametrize("kind", ["leases", "counters", "markers", "indexes", "others"])
def test_what_outlives_the_retention_is_found(story, kind):
    story.keys("before", 0.1)
    story.keys("later", 70.0, **{kind: 1})

    assert story.broken() == {"I11"}
