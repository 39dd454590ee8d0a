"""The heartbeat keeps leases, notices the end of trust by itself, and is not stopped by what goes wrong."""

from __future__ import annotations

import pytest

from celery_fence.locking import events
from celery_fence.locking.beat import BATCH
from celery_fence.locking.lease import State
from celery_fence.locking.store import Claim, Gone, Granted, Kept, Renewal
from celery_fence.stores.memory import MemoryStore


@pytest.fixture
def told():
    return []


@pytest.fixture
def keep(heartbeat, make_lease, told):
    """A lease that the heartbeat watches."""

    def keep(ttl=30.0, **given):
        lease = make_lease(ttl, **given)
        heartbeat.watch(lease, told.append)
        return lease

    return keep


def test_a_lease_is_not_renewed_before_a_third_of_its_ttl_less_a_tenth(keep, heartbeat, clock, store):
    keep(ttl=30)
    clock.advance(8.9)
    assert heartbeat.beat() == 0
    clock.advance(1.2)
    assert heartbeat.beat() == 1
    assert store.calls == [["job:1"]]


def test_the_part_of_the_ttl_is_the_users(keep, heartbeat, clock):
    keep(ttl=30, renew_fraction=0.8)
    clock.advance(21.5)
    assert heartbeat.beat() == 0
    clock.advance(2.6)
    assert heartbeat.beat() == 1


def test_a_kept_lease_is_trusted_for_another_ttl_and_renewed_again(keep, heartbeat, clock, told):
    lease = keep(ttl=30)
    for _ in range(20):
        clock.advance(10)
        assert heartbeat.beat() == 1
        assert lease.trusted_for == pytest.approx(28.5)
    assert [type(event) for event in told] == [events.Renewed] * 20


def test_what_is_renewed_is_the_claim_with_its_own_token(keep, heartbeat, clock, make_lease):
    asked = []

    class Asked:
        def renew(self, renewals):
            asked.extend(renewals)
            return [Kept()]

    lease = keep(renewals=Asked())
    clock.advance(10)
    heartbeat.beat()

    assert asked == [Renewal(lease.claim, lease.token, lease.since)]


def test_trust_counts_from_the_asking_when_the_answer_is_slow(keep, heartbeat, clock, store):
    lease = keep(ttl=30)
    store.during_renewal = lambda: clock.advance(6)
    clock.advance(10)
    heartbeat.beat()

    assert lease.trusted_for == pytest.approx(22.5)


def test_a_vanished_lease_that_was_put_back_is_told_as_such(keep, heartbeat, clock, store, told):
    keep()
    store.renewal = Kept(reinstated=True)
    clock.advance(10)
    heartbeat.beat()

    assert told[0].reinstated is True


@pytest.mark.parametrize("reason", ["taken", "superseded", "force_released"])
def test_a_lease_that_is_gone_is_lost_at_once_and_not_asked_for_again(  # noqa: PLR0917 - fixtures
    keep, heartbeat, clock, store, make_lease, reason
):
    lease = keep()
    store.renewal = Gone(reason)
    clock.advance(10)
    heartbeat.beat()

    assert lease.state is State.LOST
    assert make_lease.losses == [(lease.key, reason)]
    assert heartbeat.watching == 0
    clock.advance(10)
    assert heartbeat.beat() == 0


def test_a_failed_renewal_makes_it_suspect_and_is_tried_again_within_a_tenth_of_the_ttl(  # noqa: PLR0917 - fixtures
    keep, heartbeat, clock, store, down, told
):
    lease = keep(ttl=9)
    store.renewal = down
    clock.advance(3)
    heartbeat.beat()

    assert lease.state is State.SUSPECT
    assert not lease.lost
    clock.advance(0.9)
    assert heartbeat.beat() == 1
    assert [(type(event), event.error) for event in told] == [(events.RenewalFailed, down)] * 2
    assert told[0].trusted_for == pytest.approx(9 - 0.45 - 3)


def test_failures_on_end_are_counted_until_one_is_answered(  # noqa: PLR0917 - fixtures
    keep, heartbeat, clock, store, down, told
):
    keep(ttl=9)
    for after, renewal in ((3, down), (1, down), (1, Kept()), (3, down), (1, Kept())):
        store.renewal = renewal
        clock.advance(after)
        heartbeat.beat()

    assert [event.attempt for event in told if isinstance(event, events.RenewalFailed)] == [1, 2, 1]
    assert [event.failures for event in told if isinstance(event, events.Renewed)] == [2, 1]


def test_two_failed_renewals_in_a_row_three_times_never_lose_the_lease(keep, heartbeat, clock, store, down):
    lease = keep(ttl=9)
    for _ in range(3):
        store.renewal = down
        clock.advance(3)
        heartbeat.beat()
        clock.advance(1)
        heartbeat.beat()
        store.renewal = Kept()
        clock.advance(1)
        heartbeat.beat()
        assert lease.state is State.HELD
    assert not lease.lost


def test_an_outage_that_outlasts_trust_loses_the_lease_when_trust_ends_not_later(  # noqa: PLR0917 - fixtures
    keep, heartbeat, clock, store, down, make_lease
):
    lease = keep(ttl=9)
    store.renewal = down
    while not lease.ended and clock() < 1020:
        clock.advance(0.05)
        heartbeat.beat()

    assert clock() - 1000 == pytest.approx(9 - 0.45, abs=0.1)
    assert make_lease.losses == [(lease.key, "expired")]


def test_a_store_that_is_down_is_not_hammered(keep, heartbeat, clock, store, down):
    keep(ttl=60)
    store.renewal = down
    clock.advance(20)
    for _ in range(300):
        clock.advance(0.1)
        heartbeat.beat()

    assert 15 <= len(store.calls) <= 65


def test_after_a_long_pause_the_lease_is_lost_without_asking_the_store(
    keep, heartbeat, clock, store, make_lease
):
    lease = keep(ttl=30)
    clock.advance(3600)
    heartbeat.beat()

    assert store.calls == []
    assert lease.state is State.LOST
    assert make_lease.losses == [(lease.key, "expired")]
    assert heartbeat.watching == 0


def test_a_lease_over_its_max_hold_is_lost_and_no_longer_renewed(keep, heartbeat, clock, store, make_lease):
    lease = keep(ttl=30, max_hold=35)
    while not lease.ended and clock() < 1100:
        clock.advance(0.5)
        heartbeat.beat()

    assert clock() == 1035
    assert make_lease.losses == [("job:1", "max_hold")]
    assert len(store.calls) == 3
    clock.advance(30)
    assert heartbeat.beat() == 0


def test_a_release_while_a_renewal_is_under_way_is_not_undone(keep, heartbeat, clock, store, told):
    lease = keep()

    def released_meanwhile():
        heartbeat.forget(lease)
        lease.end()

    store.during_renewal = released_meanwhile
    clock.advance(10)
    heartbeat.beat()

    assert lease.state is State.RELEASED
    assert heartbeat.watching == 0
    assert told == []
    clock.advance(100)
    assert heartbeat.beat() == 0


def test_a_loss_while_a_renewal_is_under_way_is_not_undone(keep, heartbeat, clock, store):
    lease = keep(ttl=30)
    store.during_renewal = lambda: (clock.advance(40), lease.lost)
    clock.advance(10)
    heartbeat.beat()

    assert lease.state is State.LOST
    assert heartbeat.watching == 0


def test_an_answer_that_came_after_trust_ended_does_not_lengthen_it(keep, heartbeat, clock, store):
    """Nobody looked meanwhile: still, 40 seconds after the asking, nothing of its TTL of 30 is left."""
    lease = keep(ttl=30)
    store.during_renewal = lambda: clock.advance(40)
    clock.advance(10)
    heartbeat.beat()

    assert lease.lost


def test_250_leases_take_three_calls(keep, heartbeat, clock, store):
    for _ in range(250):
        keep()
    clock.advance(10)
    heartbeat.beat()

    assert [len(call) for call in store.calls] == [BATCH, BATCH, 50] == [100, 100, 50]
    assert len({key for call in store.calls for key in call}) == 250


def test_leases_of_two_stores_are_asked_of_their_own(keep, heartbeat, clock, store):
    other = type(store)()
    keep()
    keep(renewals=other)
    clock.advance(10)
    heartbeat.beat()

    assert (store.calls, other.calls) == ([["job:1"]], [["job:2"]])


def test_the_shortest_ttl_is_asked_for_first(keep, heartbeat, clock, store):
    for ttl, fraction in ((30, 0.05), (3, 0.6), (12, 0.1)):
        keep(ttl=ttl, key=f"ttl:{ttl}", renew_fraction=fraction)
    clock.advance(2)
    heartbeat.beat()

    assert store.calls == [["ttl:3", "ttl:12", "ttl:30"]]


def test_5000_leases_are_kept_over_many_rounds_in_few_calls(keep, heartbeat, clock, store, make_lease):
    leases = [keep(ttl=30) for _ in range(5000)]
    while clock() < 1060:
        clock.advance(0.5)
        heartbeat.beat()

    assert make_lease.losses == []
    assert all(lease.trusted_for > 10 for lease in leases)
    renewals = sum(map(len, store.calls))
    assert 5 * 5000 <= renewals <= 8 * 5000
    assert len(store.calls) <= renewals / 50


def test_forgotten_leases_leave_nothing_behind(keep, heartbeat):
    for _ in range(2000):
        heartbeat.forget(keep())

    assert heartbeat.watching == 0
    assert len(heartbeat._agenda.leases._heap) <= 100


def test_one_lease_that_is_gone_takes_no_other_with_it(heartbeat, make_lease, clock):
    memory = MemoryStore("one-gone", clock=clock)
    leases = []
    for key in ("a", "b", "c"):
        claim = Claim(key, f"owner of {key}", 30)
        granted = memory.acquire(claim)
        assert isinstance(granted, Granted)
        lease = make_lease(30, key=key, renewals=memory)
        lease.claim, lease.token = claim, granted.token
        heartbeat.watch(lease, lambda event: None)
        leases.append(lease)
    memory.force_release("b")
    clock.advance(10)
    heartbeat.beat()

    assert [lease.state for lease in leases] == [State.HELD, State.LOST, State.HELD]
    assert [memory.holder(key).ttl_left for key in "ac"] == [30, 30]


class TestWhatGoesWrong:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch):
        monkeypatch.setattr("celery_fence.locking.native.Wakeable.wait", lambda self, seconds: None)

    def test_a_store_that_breaks_in_an_unknown_way_is_asked_again(
        self, keep, heartbeat, clock, store, caplog
    ):
        lease = keep(ttl=9)
        store.renewal = ZeroDivisionError("a bug in a store")
        clock.advance(3)
        heartbeat._turn()
        assert "a bug in a store" in caplog.text
        store.renewal = Kept()
        clock.advance(1)
        heartbeat._turn()

        assert lease.state is State.HELD

    @pytest.mark.parametrize("error", [RuntimeError, SystemExit])
    def test_a_hook_that_raises_leaves_no_lease_of_its_batch_unrenewed(  # noqa: PLR0917 - fixtures
        self, keep, heartbeat, make_lease, clock, store, caplog, error
    ):
        """The third of five tells a listener that breaks: the fourth and fifth must not be forgotten."""
        told = []

        def breaks_once(event):
            told.append(event.key)
            if len(told) == 3:
                raise error("a hook")

        leases = [make_lease(ttl=9) for _ in range(5)]
        for lease in leases:
            heartbeat.watch(lease, breaks_once)
        clock.advance(3)
        heartbeat._turn()
        clock.advance(1)
        heartbeat._turn()

        assert sorted(lease.trusted_for for lease in leases) == pytest.approx([7.55, 7.55, 7.55, 8.55, 8.55])
        assert "The heartbeat stumbled" in caplog.text
        assert len(heartbeat._agenda.leases._heap) == 5

    def test_a_store_that_answers_too_little_loses_nobody(self, keep, heartbeat, clock, store, caplog):
        leases = [keep(ttl=9) for _ in range(3)]
        store.renew = lambda renewals: [Kept()]
        clock.advance(3)
        heartbeat._turn()
        del store.renew
        clock.advance(1)
        heartbeat._turn()

        assert sorted(lease.trusted_for for lease in leases) == pytest.approx([7.55, 8.55, 8.55])
