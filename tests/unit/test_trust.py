"""How long a lease may be trusted: plain arithmetic, always on the safe side."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_fence.locking.clock import steady_clock
from celery_fence.locking.trust import enough_trust_left, margin, renewal_due, trust_deadline

seconds = st.floats(0.05, 86_400)
moments = st.floats(0, 1e7)


@pytest.mark.parametrize("ttl, expected", [(60, 3.0), (600, 30.0), (2, 0.1), (1, 0.1), (0.3, 0.1)])
def test_the_margin_is_5_percent_and_at_least_100_ms(ttl, expected):
    assert margin(ttl) == pytest.approx(expected)


def test_trust_counts_from_the_question_and_ends_before_the_lease():
    assert trust_deadline(asked_at=100.0, ttl=60.0) == pytest.approx(157.0)


def test_a_ttl_within_the_margin_is_never_trusted():
    assert trust_deadline(asked_at=100.0, ttl=0.08) == 100.0


@given(moments, seconds)
def test_trust_never_outlives_the_lease_even_if_the_store_granted_it_at_once(asked_at, ttl):
    assert asked_at <= trust_deadline(asked_at, ttl) <= asked_at + ttl


@given(moments, seconds, st.floats(0.05, 0.8), st.floats(0, 1))
def test_a_renewal_is_due_at_its_fraction_or_up_to_a_tenth_of_it_sooner(asked_at, ttl, fraction, roll):
    due = renewal_due(asked_at, ttl, fraction, roll) - asked_at

    assert 0.9 * ttl * fraction - 1e-6 <= due <= ttl * fraction + 1e-6


def test_a_grant_is_worth_entering_a_body_with_down_to_half_of_its_trust():
    until = trust_deadline(0.0, 60.0)

    assert enough_trust_left(28.5, until, 60.0)
    assert not enough_trust_left(28.6, until, 60.0)


@pytest.mark.skipif(
    not hasattr(time, "CLOCK_BOOTTIME"), reason="also on CI: no CLOCK_BOOTTIME on this system"
)
def test_the_clock_counts_suspended_time_where_the_system_can():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = steady_clock()()

    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_without_such_a_clock_it_is_the_monotonic_one(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)

    assert steady_clock() is time.monotonic
