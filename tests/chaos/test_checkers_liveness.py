"""
I6: keys that nobody works on, and heartbeats that fall silent.

What breaks a promise is found; what only looks like it isn't. The histories are made by hand (`story.py`).
"""

from __future__ import annotations

import pytest
from story import KEY, TRUST, TTL, Story

# --- I6: a key is held by somebody who works on it, or it opens ----------------------------------


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


def test_a_killed_holder_that_keeps_the_key_for_longer_is_found_once_the_kill_is_long_enough_ago(story):
    story.grant("a", 1, at=1.0)
    story.fault("F1", 1.2, 1.3)
    story.miss("b", "a", at=1.4 + TTL + 1.0)

    assert story.broken() == {"I6"}


@pytest.mark.parametrize("ended", [2.0, None])
def test_a_holder_that_keeps_the_key_during_a_fault_or_just_after_one_may_only_be_cut_off(story, ended):
    story.grant("a", 1, at=1.0)
    story.fault("F6", 1.2, ended)
    story.miss("b", "a", at=1.1 + TTL + 1.0)

    assert story.violations() == []


def test_a_holder_whose_question_is_under_way_may_have_been_granted_it_just_now(story):
    story.grant("a", 1, at=1.0, took=3.0)
    story.miss("b", "a", at=3.9)

    assert story.violations() == []


def test_a_holder_that_is_told_of_a_miss_only_later_may_hold_the_key_meanwhile(story):
    story.grant("a", 1, at=0.5, took=0.01)
    story.release("a", at=0.6)
    story.ask("acquire", "b", 1.0, "delivery_ended", took=1.0)
    story.miss("c", "b", at=1.1)

    assert story.violations() == []


def test_an_owner_that_was_too_slow_may_find_its_own_lease_expired_and_closed(story):
    story.miss("a", "a", at=1.0, took=TTL + 0.1)

    assert story.violations() == []


def test_a_lease_that_somebody_made_by_hand_has_no_owner_to_ask_about(story):
    story.miss("a", "", at=1.0)

    assert story.violations() == []


def test_a_clock_that_will_be_moved_lengthens_no_lease_before(story):
    story.grant("a", 1, at=1.0)
    story.miss("b", "a", at=1.1 + TTL + 1.0)
    story.fault("F10", 8.0, 8.1, target="server", detail="-5.0 s")

    assert story.broken() == {"I6"}


def test_a_process_that_was_killed_over_its_own_harm_isn_t_at_fault_for_ever(story):
    story.note("fault", 0.2, pid=9, id="hook", fault="F13", phase="begin", loses_data=False)
    story.note("start", 0.3, pid=9, run="r", task_id="t", key=KEY, owner="x", token=1)
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


@pytest.mark.parametrize(("answer", "fault"), [("gone", None), ("kept", (2.0, 2.1))])
def test_a_late_renewal_of_a_body_that_ended_is_nothing_if_it_is_refused_or_held_up_by_a_fault(
    story, answer, fault
):
    story.grant("a", 1, at=1.0)
    story.start("a", 1.1)
    story.end("a", 1.2)
    if fault:
        story.fault("F2", *fault)
    story.renew("a", at=1.3 + TTL + 1.0, answer=answer, given={"reason": "superseded"})

    assert story.violations() == []


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


@pytest.mark.parametrize("signs", [2, 4])
def test_a_lease_that_was_lost_by_a_sleeping_process_is_nobodys_fault(story, signs):
    _silent_heartbeat(story, signs=signs)

    assert story.violations() == []


def test_a_process_that_fell_asleep_half_way_is_a_sleeping_one(story):
    for number in range(10):
        story.note("awake", 1.35 + 0.01 * number, pid=7)
    _silent_heartbeat(story, signs=1)

    assert story.violations() == []


def test_a_silence_that_is_too_short_to_tell_is_none(story):
    _silent_heartbeat(story, signs=200, answer="error", took=0.25)

    assert story.violations() == []


def test_an_answer_that_came_after_the_loss_has_kept_nothing(story):
    story.grant("a", 1, at=1.0, pid=7)
    story.renew("a", 1.3, answer="error", took=0.3, pid=7)
    story.renew("a", 1.65, answer="reinstated", took=0.3, pid=7)
    story.lost("a", at=1.0 + TRUST)
    for number in range(80):
        story.note("awake", 1.05 + 0.02 * number, pid=7)

    assert story.violations() == []


def test_an_answer_that_came_when_trust_was_over_has_kept_nothing_though_the_loss_is_felt_later(story):
    """The process slept, asked too late, and felt the loss only after the answer."""
    story.grant("a", 1, at=1.0, pid=7)
    story.renew("a", 1.0 + TRUST - 0.01, answer="kept", took=0.1, pid=7)
    story.lost("a", at=1.0 + TRUST + 0.1)
    for number in range(100):
        story.note("awake", 1.0 + TRUST + 0.02 * number, pid=7)

    assert story.violations() == []


def test_a_lease_that_was_held_for_too_long_was_given_up_on_purpose(story):
    story.grant("a", 1, at=1.0)
    for number in range(20):
        story.note("awake", 1.05 + 0.04 * number)
    story.lost("a", at=1.9, reason="max_hold")

    assert story.violations() == []


def test_a_loss_of_what_was_never_granted_is_nothing_to_ask_about(story):
    story.lost("a", at=1.9)

    assert story.violations() == []


def test_a_heartbeat_isn_t_excused_by_a_task_that_waits_for_the_store(story):
    story.ask("acquire", "other", 1.2, None, key="other", pid=7)
    _silent_heartbeat(story, signs=20)

    assert story.broken() == {"I6"}


def test_a_heartbeat_that_waits_for_an_answer_isn_t_silent(story):
    _silent_heartbeat(story, signs=20, answer="error", took=0.8)

    assert story.violations() == []


def test_a_heartbeat_that_waits_for_the_answer_about_another_lease_isn_t_silent(story):
    story.renew("other", at=1.2, key="other", answer=None, pid=7)
    _silent_heartbeat(story, signs=20)

    assert story.violations() == []
