"""
I7, I8 and I11: sections that begin too late, messages out of order, keys that stay.

What breaks a promise is found; what only looks like it isn't. The histories are made by hand (`story.py`).
"""

from __future__ import annotations

import pytest
from story import KEY, TRUST, Story

# --- I7: no section begins after the deadline ----------------------------------------------------


def test_a_section_after_the_deadline_is_found(story):
    story.grant("a", 1, at=1.0)
    story.section("a", before=1.0 + TRUST + 0.01)

    assert story.broken() == {"I7"}


def test_a_renewal_that_failed_moves_no_deadline(story):
    story.grant("a", 1, at=1.0)
    story.renew("a", at=1.5, answer="error")
    story.section("a", before=2.0)

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


# --- I8: order -----------------------------------------------------------------------------------


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


def test_a_queue_that_was_lost_with_the_data_has_no_order():
    story = Story(ordered=["sync"])
    _overtaking(story)
    story.fault("F4", 1.5, 1.6, loses_data=True)

    assert story.violations() == []


def test_what_never_started_or_ran_without_a_lease_overtakes_nobody():
    story = Story(ordered=["sync"])
    for at, task_id in ((1.0, "a"), (1.1, "b"), (1.2, "c")):
        story.published(task_id, at, name="sync")
        story.outcome(task_id, "skipped")
    story.start("b", 2.0, token=None)
    story.start("c", 3.0, token=3)

    assert story.violations() == []


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


# --- I11: nothing is left ------------------------------------------------------------------------


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
