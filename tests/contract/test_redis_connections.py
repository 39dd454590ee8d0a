"""Connections are lent and come back, whatever strikes the borrower; who waits for one is woken."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from contextlib import suppress

import pytest
from redis import exceptions

from celery_fence.locking.store import Claim, Renewal
from celery_fence.stores import from_url
from celery_fence.stores.redis import client, connections
from celery_fence.stores.redis.connections import Connections, Loan, Turn
from celery_fence.stores.redis.failures import AllBusy
from celery_fence.stores.redis.urls import parse_address

FILES = (client.__file__, connections.__file__)
LEASE = Renewal(Claim("a key", "an owner", 30.0), 1, 0.0)
DEADLINE = 15.0
TIMEOUT = 1.0


class Strike:
    """Raises SystemExit at the line of number *at* that a call goes through in the client's files."""

    def __init__(self, at):
        self.at = at
        self.lines = 0
        self.where = None

    def __call__(self, frame, event, arg):
        return self.watch(set()) if frame.f_code.co_filename in FILES else None

    def watch(self, seen):
        def line(frame, event, arg):
            source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            # Nothing strikes at a `try:`, nor on the way out of a `with` before its end is called.
            if (
                event == "line"
                and source != "try:"
                and not (source.startswith("with ") and frame.f_lineno in seen)
            ):
                self.lines += 1
                if self.lines - 1 == self.at:
                    self.where = frame.f_lineno
                    raise SystemExit
            seen.add(frame.f_lineno)
            return line

        return line

    def during(self, function):
        sys.settrace(self)
        try:
            function()
        except SystemExit:
            return True
        finally:
            sys.settrace(None)
        return False


def test_struck_at_any_line_an_asker_leaves_the_only_connection_to_the_next(server, prefix):
    """The heartbeat has one for all leases of a process: losing it would lose them."""
    renewals = from_url(server.url, prefix=prefix, timeout=5.0).for_heartbeat()
    renewals.renew([LEASE])
    struck, slowest = 0, 0.0
    while Strike(struck).during(lambda: renewals.renew([LEASE])):
        began = time.monotonic()
        assert len(renewals.renew([LEASE])) == 1
        slowest = max(slowest, time.monotonic() - began)
        struck += 1
    renewals.close()

    assert struck > 20
    assert slowest < 5.0, "one waited for a connection that nobody has"


@pytest.fixture
def two():
    """Room for two connections, which nobody needs to open here."""
    return Connections(parse_address("redis://localhost"), timeout=TIMEOUT, limit=2)


def take_in_thread(lender, taken):
    def take():
        try:
            taken.append(lender.take(time.monotonic() + DEADLINE))
        except exceptions.TimeoutError as error:
            taken.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_who_waits_is_woken_by_the_next_that_is_given_back(two, monkeypatch):
    monkeypatch.setattr(connections, "LOOK", 60.0)
    first, _second, taken = two.take(), two.take(), []
    thread = take_in_thread(two, taken)
    while not two._waiting:
        assert thread.is_alive()
    two.give_back(first, healthy=False)
    thread.join(DEADLINE / 2)

    assert [type(each) for each in taken] == [Loan]


def test_who_waits_gets_what_a_borrower_lost_without_a_word(two):
    lost, _second, taken = two.take(), two.take(), []
    thread = take_in_thread(two, taken)
    while not two._waiting:
        assert thread.is_alive()
    del lost
    thread.join(DEADLINE / 2)

    assert [type(each) for each in taken] == [Loan]


def test_more_than_the_limit_are_never_out_and_who_waits_too_long_is_told(two):
    loans = [two.take(), two.take()]
    with pytest.raises(AllBusy, match="none of 2"):
        two.take(time.monotonic() + TIMEOUT + 0.05)
    assert two._waiting == {}
    two.give_back(loans.pop(), healthy=False)

    assert isinstance(two.take(), Loan)


def turn():
    return Turn(time.monotonic() + DEADLINE)


def rung(turn):
    return turn.bell.acquire(blocking=False)


def test_who_waits_is_served_before_who_comes_later(two):
    """However long it takes to wake: first waits - another gives back, rings - a newcomer asks - first wakes."""
    loans, lent, first, second = [two.take(), two.take()], Loan(), turn(), turn()
    assert not two._lend(lent, first)
    assert not two._lend(Loan(), second)
    two.give_back(loans.pop(), healthy=False)
    assert not two._lend(Loan(), second)
    with pytest.raises(AllBusy):
        two.take(time.monotonic() + TIMEOUT + 0.01)

    assert (rung(first), rung(second)) == (True, False)
    assert two._lend(lent, first)
    two.give_back(loans.pop(), healthy=False)
    assert rung(second)


def test_two_that_are_given_back_before_anybody_is_awake_wake_two(two):
    loans, lent, first, second = [two.take(), two.take()], Loan(), turn(), turn()
    assert not two._lend(lent, first)
    assert not two._lend(Loan(), second)
    while loans:
        two.give_back(loans.pop(), healthy=False)  # rings; the second time it is rung already
    assert two._lend(lent, first)

    assert rung(second)


def test_whose_patience_has_ended_stands_in_nobodys_way(two):
    loans, gone, next_one = [two.take(), two.take()], Turn(time.monotonic()), turn()
    assert not two._lend(Loan(), gone)
    assert not two._lend(Loan(), next_one)
    two.give_back(loans.pop(), healthy=False)

    assert rung(next_one)
    assert two._lend(Loan(), next_one)


def test_who_was_rung_and_struck_before_it_woke_leaves_it_to_the_next(two, monkeypatch):
    loans, next_one = [two.take(), two.take()], turn()

    def struck(waiting):
        assert not two._lend(Loan(), next_one)
        two.give_back(loans.pop(), healthy=False)
        raise SystemExit

    monkeypatch.setattr(two, "_wait", struck)
    with pytest.raises(SystemExit):
        two.take(time.monotonic() + DEADLINE)

    assert rung(next_one)
    assert two._lend(Loan(), next_one)


def test_struck_at_any_line_one_who_waits_leaves_no_trace(two, monkeypatch):
    loans, struck = [two.take(), two.take()], 0
    monkeypatch.setattr(connections, "LOOK", 0.01)

    def ask():
        with suppress(AllBusy):
            two.take(time.monotonic() + TIMEOUT + 0.02)

    while Strike(struck).during(ask):
        assert two._first_in_line() is None
        struck += 1
    two.give_back(loans.pop(), healthy=False)

    assert struck > 20
    assert isinstance(two.take(time.monotonic() + DEADLINE), Loan)


def test_who_waited_has_a_whole_time_out_left_for_its_call_or_makes_none(two):
    """Else those who come last would fail in the call, and close connections that others wait for."""
    loans, until = [two.take(), two.take()], time.monotonic() + TIMEOUT + 0.1
    with pytest.raises(AllBusy):
        two.take(until)

    assert time.monotonic() < until
    del loans
