"""
I6 after the heal: every key is free, or held by somebody who works on it, within the TTL, the lost delay and 1 s.

What breaks a promise is found; what only looks like it isn't. The histories are made by hand (`story.py`).
"""

from __future__ import annotations

import pytest
from story import KEY, TTL, Story

HEALED = 10.0
BOUND = HEALED + TTL + 1.0
AFTER = BOUND + 0.5
"""When a renewal that is asked for beyond the bound has been answered."""


@pytest.fixture
def story(story) -> Story:
    """A round whose last fault has healed."""
    story.fault("F2", 5.0, HEALED - 0.1)
    story.note("healed", HEALED, role="driver")
    return story


def look(story: Story, at: float, owner: str = "a", *, left: float = 0.5, lost_delay: float = 0.0) -> None:
    """The driver sees that *owner* has the key."""
    lease = {"key": KEY, "owner": owner, "ttl": TTL, "lost_delay": lost_delay, "left": left}
    story.note("leases", at, role="driver", until=at + 0.01, leases=[lease])


def keep(story: Story, since: float, until: float, owner: str = "a") -> None:
    """The heartbeat of *owner* renews."""
    for number in range(int((until - since) / 0.3) + 1):
        story.renew(owner, since + 0.3 * number)


def found(story: Story) -> str:
    """The one violation, which is I6."""
    (violation,) = story.violations()
    assert violation.invariant == "I6"
    return violation.text


# --- the lease of somebody dead --------------------------------------------------------------------


def test_a_dead_holder_whose_key_stays_held_beyond_the_bound_is_found_though_nobody_asks_for_it(story):
    story.grant("a", 1, at=8.0)
    story.start("a", 8.1)
    look(story, BOUND)

    assert "had given no sign for 3.9" in found(story)


def test_until_the_bound_a_dead_holder_may_keep_its_key(story):
    story.grant("a", 1, at=8.0)
    story.start("a", 8.1)
    look(story, BOUND - 0.2)

    assert story.violations() == []


def test_a_renewal_that_was_refused_and_a_release_are_no_signs_that_somebody_keeps_the_key(story):
    story.grant("a", 1, at=8.0)
    story.start("a", 8.1)
    story.renew("a", BOUND - 0.2, answer="gone", given={"reason": "taken"})
    story.release("a", BOUND - 0.1, answer="error")
    look(story, BOUND)

    assert "had given no sign" in found(story)


def test_a_lease_without_an_owner_that_ever_asked_is_found(story):
    look(story, BOUND, owner="nobody")

    assert "somebody who never asked" in found(story)


def test_while_there_are_faults_a_lease_may_be_anybodys(story):
    story.note("fault", 6.0, role="driver", id="endless", fault="F6", phase="begin", loses_data=False)
    look(story, BOUND, owner="nobody, in time")
    story.grant("nobody, in time", 1, at=5.5)
    story.miss("b", "nobody, in time", at=BOUND + 1.0)

    assert story.violations() == []


# --- the lease of somebody who doesn't work --------------------------------------------------------


def test_a_holder_that_renews_and_works_may_keep_its_key_for_as_long_as_it_likes(story):
    story.grant("a", 1, at=8.0)
    story.start("a", 8.1)
    keep(story, 8.3, 30.0)
    look(story, 29.9)
    story.miss("b", "a", at=29.9)

    assert story.violations() == []


@pytest.mark.parametrize("seen", ["by the driver", "by one who asks"])
def test_a_heartbeat_that_goes_on_though_its_body_ended_during_the_faults_is_found(story, seen):
    """The release was asked for, and never reached the store."""
    story.grant("a", 1, at=8.0)
    story.start("a", 8.1)
    story.end("a", 8.2)
    keep(story, 8.3, AFTER)
    if seen == "by the driver":
        look(story, AFTER)
    else:
        story.miss("b", "a", at=AFTER)

    assert "after its body had ended" in found(story)


def test_a_body_that_has_just_ended_may_not_have_released_its_key_yet(story):
    story.grant("a", 1, at=8.0)
    story.start("a", 8.1)
    story.end("a", 28.2)
    keep(story, 8.3, 30.1)
    look(story, 30.1 + TTL)
    story.miss("b", "a", at=30.1 + TTL)

    assert story.violations() == []


@pytest.mark.parametrize("seen", ["by the driver", "by one who asks"])
def test_a_heartbeat_that_goes_on_for_a_body_that_never_began_is_found(story, seen):
    story.grant("a", 1, at=8.0)
    keep(story, 8.3, AFTER)
    if seen == "by the driver":
        look(story, AFTER)
    else:
        story.miss("b", "a", at=AFTER)

    assert "without ever beginning a body" in found(story)


def test_a_grant_of_just_now_needs_no_body_yet(story):
    story.grant("a", 1, at=BOUND)
    look(story, BOUND + 0.5)
    story.miss("b", "a", at=BOUND + 0.5)

    assert story.violations() == []


@pytest.mark.parametrize("ended", [8.2, None])
def test_what_went_on_for_nothing_during_the_faults_may_do_so_until_the_bound(story, ended):
    story.grant("a", 1, at=8.0)
    if ended:
        story.start("a", 8.1)
        story.end("a", ended)
    keep(story, 8.3, BOUND - 0.1)
    look(story, BOUND + TTL - 0.2)
    story.miss("b", "a", at=BOUND + TTL - 0.2)

    assert story.violations() == []


# --- more left than a lease ever has ---------------------------------------------------------------


def test_a_lease_that_has_more_left_than_its_ttl_is_found(story):
    story.grant("a", 1, at=BOUND)
    story.start("a", BOUND + 0.01)
    look(story, BOUND + 0.1, left=TTL + 0.1)

    assert "no lease of its lives longer" in found(story)


def test_a_lease_may_have_its_lost_delay_left_beside_its_ttl(story):
    story.grant("a", 1, at=BOUND)
    story.start("a", BOUND + 0.01)
    look(story, BOUND + 0.1, left=TTL + 0.1, lost_delay=0.5)

    assert story.violations() == []


def _clock_stepped_back(story: Story) -> None:
    """While the clock was ahead, `a` was granted the key, and died."""
    story.fault("F10", 7.0, 9.0, target="server", step=60.0)
    story.grant("a", 1, at=8.0)
    story.start("a", 8.1)


def test_a_clock_that_was_stepped_back_lengthens_the_lease_of_a_key_nobody_asks_for(story):
    _clock_stepped_back(story)
    look(story, BOUND + 5.0, left=50.0)
    story.miss("b", "a", at=BOUND + 6.0)
    story.miss("b", "a", at=BOUND + 6.0 + TTL)

    assert story.violations() == []


def test_a_clock_that_was_stepped_back_lengthens_no_lease_by_more_than_a_ttl_after_somebody_asked(story):
    _clock_stepped_back(story)
    story.miss("b", "a", at=BOUND)
    story.miss("b", "a", at=BOUND + TTL + 1.1)

    assert "had given no sign" in found(story)


# --- when everything has ended ---------------------------------------------------------------------


def test_a_key_that_the_driver_is_never_granted_is_found(story):
    story.note("probed", 60.0, role="driver", refused={KEY: "a"})

    assert "can't be had" in found(story)


def test_keys_that_were_all_granted_break_nothing(story):
    story.note("probed", 60.0, role="driver", refused={})

    assert story.violations() == []
