"""A lease is trusted on the holder's own clock, ends once, and never comes back."""

from __future__ import annotations

import threading

import pytest

from celery_fence.errors import LeaseLost, StoreUnavailable
from celery_fence.locking.lease import State
from celery_fence.locking.loss import REASONS
from celery_fence.locking.null_lease import NullLease
from celery_fence.locking.store import Claim
from celery_fence.stores.memory import MemoryStore


def test_it_is_trusted_until_its_ttl_less_the_margin(make_lease, clock):
    lease = make_lease(ttl=30)

    assert lease.trusted_for == pytest.approx(28.5)
    clock.advance(28.4)
    lease.check()
    clock.advance(0.1)
    with pytest.raises(LeaseLost):
        lease.check()
    assert (lease.state, lease.trusted_for) == (State.LOST, 0.0)


def test_a_slow_grant_has_less_trust_left(make_lease, clock):
    lease = make_lease(ttl=30, asked_at=clock() - 10)

    assert lease.trusted_for == pytest.approx(18.5)
    assert lease.held_for == pytest.approx(10)


def test_a_renewal_counts_from_when_it_was_asked_not_answered(make_lease, clock):
    lease = make_lease(ttl=30)
    clock.advance(20)

    assert lease.renewed(asked_at=clock() - 5)
    assert lease.trusted_for == pytest.approx(23.5)


def test_max_hold_ends_trust_whatever_is_renewed(make_lease, clock):
    lease = make_lease(ttl=30, max_hold=40)
    clock.advance(20)
    lease.renewed(asked_at=clock())

    assert lease.trusted_for == pytest.approx(20)
    clock.advance(20)
    assert lease.lost
    assert make_lease.losses == [("job:1", "max_hold")]


def test_without_renewal_a_lease_with_max_hold_still_expires_with_its_ttl(make_lease, clock):
    lease = make_lease(ttl=30, max_hold=40)
    clock.advance(29)

    assert lease.lost
    assert make_lease.losses == [("job:1", "expired")]


def test_a_lost_lease_is_not_revived_by_a_late_answer(make_lease, clock):
    lease = make_lease()
    lease.lose("taken")

    assert lease.renewed(asked_at=clock()) is False
    assert lease.lost
    with pytest.raises(LeaseLost, match="another owner"):
        lease.check()


def test_a_lease_lost_while_its_answer_is_being_noted_stays_lost(make_lease, clock, monkeypatch):
    """
    Between the heartbeat's look at the state and its note, the task's thread notices the end:
    heartbeat: not ended? - task: check() raises, lost - heartbeat: noted as renewed.
    """
    lease = make_lease(ttl=30)
    original = type(lease)._trust_from

    def and_meanwhile(self, asked_at):
        original(self, asked_at)
        self.lose("expired")

    monkeypatch.setattr(type(lease), "_trust_from", and_meanwhile)

    assert lease.renewed(asked_at=clock()) is False
    assert lease.state is State.LOST
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_suspect_lease_is_trusted_until_its_deadline_and_recovers(make_lease, clock):
    lease = make_lease(ttl=30)
    clock.advance(15)
    lease.suspect()

    assert lease.state is State.SUSPECT
    lease.check()
    lease.renewed(asked_at=clock())
    assert (lease.state, lease.trusted_for) == (State.HELD, pytest.approx(28.5))


def test_an_ended_lease_is_not_made_suspect(make_lease):
    lease = make_lease()
    lease.end()
    lease.suspect()

    assert lease.state is State.RELEASED


def test_losing_is_told_once_however_many_notice(make_lease):
    lease = make_lease()
    barrier, answers = threading.Barrier(8), []

    def notice():
        barrier.wait(5)
        answers.append(lease.lose("taken"))

    threads = [threading.Thread(target=notice) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)

    assert sorted(answers) == [False] * 7 + [True]
    assert make_lease.losses == [("job:1", "taken")]


def test_a_release_can_not_be_lost_afterwards_and_a_loss_not_released(make_lease):
    released, lost = make_lease(), make_lease()

    assert (released.end(), released.lose("taken"), released.end()) == (True, False, False)
    assert (lost.lose("taken"), lost.end()) == (True, False)
    assert make_lease.losses == [("job:2", "taken")]
    assert (released.state, lost.state) == (State.RELEASED, State.LOST)


def test_after_its_release_check_raises_although_it_is_not_lost(make_lease):
    lease = make_lease()
    lease.end()

    with pytest.raises(LeaseLost, match="released already"):
        lease.check()
    assert not lease.lost
    assert lease.trusted_for == 0.0


def test_a_released_lease_is_not_lost_when_its_time_is_over(make_lease, clock):
    lease = make_lease()
    lease.end()
    clock.advance(1000)

    assert not lease.lost
    assert make_lease.losses == []


@pytest.mark.parametrize("reason", REASONS)
def test_the_error_names_the_key_the_token_and_why(make_lease, reason):
    lease = make_lease(key="tenant:7:sync")
    lease.lose(reason)
    error = lease.loss()

    assert (error.key, error.token, error.reason) == ("tenant:7:sync", 1, reason)
    assert "'tenant:7:sync' (token 1)" in str(error)
    assert REASONS[reason] in str(error)


def test_verify_asks_the_store_and_loses_what_is_not_there(make_lease, clock):
    memory = MemoryStore("verify", clock=clock)
    lease = make_lease(store=memory)
    memory.acquire(lease.claim)
    lease.verify()
    memory.force_release(lease.key)

    with pytest.raises(LeaseLost):
        lease.verify()
    assert lease.lost


def test_verify_loses_a_lease_that_somebody_else_has(make_lease, clock):
    memory = MemoryStore("verify-taken", clock=clock)
    lease = make_lease(store=memory)
    memory.acquire(Claim(lease.key, "somebody else", 30))

    with pytest.raises(LeaseLost, match="another owner"):
        lease.verify()


def test_verify_of_a_lease_that_is_over_asks_nobody(make_lease, clock):
    lease = make_lease(store=None)
    clock.advance(31)

    with pytest.raises(LeaseLost):
        lease.verify()


def test_an_unreachable_store_leaves_trust_as_it_is(make_lease, down):
    class Unreachable:
        def holder(self, key):
            raise down

    lease = make_lease(store=Unreachable())
    with pytest.raises(StoreUnavailable):
        lease.verify()
    lease.check()


def test_the_headers_carry_token_and_key(make_lease):
    assert make_lease(key="a:b").headers() == {"X-Fencing-Token": "1", "X-Fencing-Scope": "a:b"}


def test_a_null_lease_passes_everything_and_has_no_token():
    lease = NullLease()
    lease.check()
    lease.verify()

    assert (lease.key, lease.token, lease.owner, lease.lost, lease.headers()) == (None, None, None, False, {})
    assert lease.trusted_for == lease.ttl == float("inf")
