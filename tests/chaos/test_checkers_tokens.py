"""
I2 and I3: tokens that go down, and writes that are treated wrongly.

What breaks a promise is found; what only looks like it isn't. The histories are made by hand (`story.py`).
"""

from __future__ import annotations

import pytest
from story import KEY

# --- I2: tokens grow -----------------------------------------------------------------------------


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


# --- I3: stale writes are refused and counted, and nobody else's ---------------------------------


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
