"""A wrong name is answered with the right one, whatever other libraries call it."""

import pytest

from celery_fence.locking.suggest import hint, nearest

KNOWN = ["lock_key", "lock_ttl", "lock_max_hold", "miss_policy", "fence_ttl", "fence_url", "fence_max_hold"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("lock_tll", "lock_ttl"),
        ("lock-key", "lock_key"),
        ("LOCK_TTL", "lock_ttl"),
        ("lock_timeout", "lock_ttl"),
        ("lock_expiry", "lock_ttl"),
        ("fence_timeout", "fence_ttl"),
        ("lock_url", "fence_url"),
        ("mis_policy", "miss_policy"),
    ],
)
def test_the_nearest_right_name_is_found(wrong, right):
    assert nearest(wrong, KNOWN) == right


def test_whole_names_of_other_libraries_are_asked_before_spelling():
    assert nearest("unique_on", KNOWN, {"unique_on": "lock_key"}) == "lock_key"
    assert nearest("lock_keys", ["lock_ttl", "lock_key"], {"lock_keys": "lock_ttl"}) == "lock_ttl"


def test_a_name_like_no_other_has_no_hint():
    assert nearest("xyzzy", KNOWN) is None
    assert hint("xyzzy", KNOWN) == ""
    assert hint("xyzzy", []) == ""


def test_the_name_itself_is_never_the_hint():
    assert nearest("lock_ttl", ["lock_ttl"]) is None


def test_how_alike_two_names_must_be_can_be_asked():
    assert nearest("lock_owner", KNOWN)
    assert nearest("lock_owner", KNOWN, alike=0.8) is None
    assert nearest("lock_tll", KNOWN, alike=0.8) == "lock_ttl"


def test_the_hint_ends_a_message():
    assert hint("lock_timeout", KNOWN) == " Did you mean 'lock_ttl'?"
