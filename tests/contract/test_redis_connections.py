"""Connections are lent and come back, whatever strikes the borrower; who waits for one is woken."""

from __future__ import annotations

import linecache
import sys
import threading
import time

import pytest
from redis import exceptions

from celery_fence.locking.store import Claim, Renewal
from celery_fence.stores import from_url
from celery_fence.stores.redis import client, connections
from celery_fence.stores.redis.connections import Connections, Loan
from celery_fence.stores.redis.failures import AllBusy
from celery_fence.stores.redis.urls import parse_address

FILES = (client.__file__, connections.__file__)
LEASE = Renewal(Claim("a key", "an owner", 30.0), 1, 0.0)
DEADLINE = 15.0


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
    return Connections(parse_address("redis://localhost"), timeout=DEADLINE, limit=2)


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
        two.take(time.monotonic() + 0.05)
    assert two._waiting == {}
    two.give_back(loans.pop(), healthy=False)

    assert isinstance(two.take(), Loan)


def test_a_ring_at_the_end_of_ones_patience_breaks_nothing(two):
    """Borrower: waited long enough - another: gives back, rings - a third: takes it - borrower: waits again."""
    loans, bell = [two.take(), two.take()], connections._silent_bell()
    assert not two._lend(Loan(), bell)
    for _ in range(2):
        two.give_back(loans.pop(), healthy=False)  # rings; the second time it is waited for, and rung already
        loans.insert(0, two.take())
        assert not two._lend(Loan(), bell)
