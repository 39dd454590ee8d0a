"""
I4, I5 and G7: messages that end never, twice, or again.

What breaks a promise is found; what only looks like it isn't. The histories are made by hand (`story.py`).
"""

from __future__ import annotations

import pytest
from story import KEY, Story


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


# --- I4: every message ends in exactly one outcome -----------------------------------------------


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


def _missing(story: Story, *, drained: bool) -> None:
    """Two messages that nobody took, after one whole worker was killed."""
    for task_id in ("a", "b"):
        story.note("published", 1.0, role="driver", task_id=task_id, name="retry", key=KEY, copies=1)
        story.outcome(task_id, "lost_by_broker")
    story.fault("F1", 2.0, 2.1, detail="worker w1")
    story.fault("F1", 3.0, 3.1, detail="child")
    story.note("drained", 9.0, role="driver", ok=drained, waiting=["x"])


def test_more_lost_messages_than_killed_workers_are_found(story):
    _missing(story, drained=True)

    (violation,) = story.violations()
    assert violation.invariant == "I4"
    assert "no killed one can have taken it along" in violation.text


def test_what_may_still_wait_in_a_queue_is_not_called_missing(story):
    _missing(story, drained=False)

    (violation,) = story.violations()
    assert "still wait" in violation.text


def test_while_the_run_goes_on_a_missing_outcome_is_no_violation(story):
    story.published("a", 1.0)

    assert story.violations(online=True) == []


# --- I5 and G7: no second run of an ended delivery -----------------------------------------------


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
