"""Taking and giving back leases: the owner is known before the store is asked, so nothing is left over."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from celery_fence.errors import LeaseLost, StoreUnavailable
from celery_fence.locking import events
from celery_fence.locking.lease import Lease, State
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim, Ending, Gone, Held, Released
from celery_fence.stores.memory import MemoryStore

DELIVERED = Claim("job:1", "me", 30.0, delivery="d1", message="m1")
RETURNED = Ending("returned")


class Broken(MemoryStore):
    """A memory store whose calls can be made to fail, before or after they took effect."""

    before = after = between = None
    took = 0.0

    def _through(self, call, *args):
        if self.before:
            raise self.before
        answer = call(*args)
        self._clock.advance(self.took)
        if self.after:
            raise self.after
        return answer

    def acquire(self, *asked):
        return self._through(super().acquire, *asked)

    def release(self, *asked):
        if self.between is None:
            return self._through(super().release, *asked)
        super().release(*asked)  # carried out, and its reply is lost
        between, self.between = self.between, None
        between()
        answer = super().release(*asked)
        return replace(answer, repeated=True) if isinstance(answer, Gone) else answer

    def renew(self, *asked):
        return self._through(super().renew, *asked)


@pytest.fixture
def store(clock, request):
    return Broken(request.node.name, clock=clock)


@pytest.fixture
def onlooker(clock, request, store):
    """The same leases, seen through a store that works."""
    return MemoryStore(request.node.name, clock=clock)


@pytest.fixture
def told():
    return []


@pytest.fixture
def locker(store, heartbeat, clock, told):
    return Locker(store, store, told.append, heartbeat=heartbeat, clock=clock)


@pytest.fixture
def acquire(locker):
    def acquire(owner="me", *, ttl=30.0, into=lambda lease: None, **given):
        return locker.acquire(
            Claim("job:1", owner, ttl),
            source="the task",
            terms=given.pop("terms", Terms()),
            into=into,
            **given,
        )

    return acquire


def test_a_granted_lease_is_told_of_watched_and_trusted_from_the_asking(acquire, store, heartbeat, told):
    store.took = 2.0
    lease = acquire(waited=7.0)

    assert lease.trusted_for == pytest.approx(28.5 - 2)
    assert heartbeat.watching == 1
    assert told == [events.Acquired("the task", "job:1", lease, 7.0)]


def test_who_holds_it_is_an_answer_and_no_event(acquire, told, heartbeat):
    acquire("me")
    told.clear()
    answer = acquire("you")

    assert isinstance(answer, Held)
    assert answer.holder.owner == "me"
    assert told == []
    assert heartbeat.watching == 1


def test_the_lease_is_handed_over_before_it_is_watched(acquire, heartbeat):
    seen = []
    acquire(into=lambda lease: seen.append((lease.key, heartbeat.watching)))

    assert seen == [("job:1", 0)]


def test_tokens_grow_from_grant_to_grant(acquire, locker):
    tokens = []
    for owner in "abc":
        lease = acquire(owner)
        tokens.append(lease.token)
        locker.release(lease)

    assert tokens == sorted(set(tokens))


def test_a_grant_that_took_too_long_is_given_back_with_an_error_that_says_so(
    acquire, store, onlooker, heartbeat, told
):
    store.took = 15.0
    with pytest.raises(StoreUnavailable, match=r"memory://.* took 15\.0 s to grant 'job:1'.*raise lock_ttl"):
        acquire(ttl=30)

    assert onlooker.holder("job:1") is None
    assert heartbeat.watching == 0
    assert told == []


def test_half_of_its_trust_is_enough(acquire, store):
    store.took = 14.0

    assert acquire(ttl=30).trusted_for == pytest.approx(14.5)


def test_a_lost_reply_to_an_acquire_is_an_outage_and_the_ttl_ends_what_it_left(  # noqa: PLR0917 - fixtures
    acquire, store, onlooker, heartbeat, clock, down
):
    store.after = down
    with pytest.raises(StoreUnavailable):
        acquire(ttl=30)

    assert heartbeat.watching == 0
    clock.advance(30.1)
    assert onlooker.holder("job:1") is None


def test_a_lost_reply_and_the_same_question_again_is_one_grant(acquire, store, down):
    store.after = down
    with pytest.raises(StoreUnavailable):
        acquire("me")
    store.after = None

    assert isinstance(acquire("me"), Lease)


def test_a_late_copy_of_a_question_after_the_release_grants_nothing(acquire, locker, onlooker):
    locker.release(acquire("me"))

    with pytest.raises(StoreUnavailable, match="owner me has released"):
        acquire("me")
    assert onlooker.holder("job:1") is None


@pytest.mark.parametrize("where", ["into", "watch"])
def test_an_interrupted_acquire_leaves_nothing(acquire, onlooker, heartbeat, monkeypatch, where):
    def interrupted(*_):
        raise KeyboardInterrupt

    if where == "watch":
        watch = type(heartbeat).watch
        monkeypatch.setattr(heartbeat, "watch", lambda *args: (watch(heartbeat, *args), interrupted()))
    with pytest.raises(KeyboardInterrupt):
        acquire(into=interrupted if where == "into" else lambda lease: None)

    assert onlooker.holder("job:1") is None
    assert heartbeat.watching == 0


class Interruption(Exception):
    """What a soft time limit is to us: it strikes at any line, and the process goes on."""


def test_what_an_interrupted_acquire_may_have_been_granted_is_given_back_without_waiting_for_the_store(
    acquire, store, onlooker, heartbeat
):
    store.after = Interruption()
    with pytest.raises(Interruption):
        acquire()
    assert onlooker.holder("job:1") is not None  # nobody has waited for a store that may hang
    store.after = None
    heartbeat.pay()

    assert onlooker.holder("job:1") is None
    assert heartbeat.watching == heartbeat.noting == 0


def test_a_question_that_is_still_under_way_when_its_asker_was_interrupted_grants_nothing(
    acquire, store, heartbeat
):
    store.before = Interruption()
    with pytest.raises(Interruption):
        acquire("me")
    store.before = None
    heartbeat.pay()

    with pytest.raises(StoreUnavailable, match="has released"):
        acquire("me")


def test_a_grant_that_could_not_be_given_back_is_given_back_when_the_store_answers(
    acquire, store, onlooker, heartbeat, down
):
    def into(_):
        store.before = down
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        acquire(into=into)
    store.before = None
    heartbeat.pay()

    assert onlooker.holder("job:1") is None


@pytest.mark.parametrize("heard", [False, True])
def test_a_release_that_was_interrupted_is_made_later_and_remembers_the_end(  # noqa: PLR0917 - fixtures
    locker, store, onlooker, heartbeat, told, heard
):
    lease = locker.acquire(DELIVERED, source="the task", terms=Terms(), into=lambda lease: None)
    store.before, store.after = (None, Interruption()) if heard else (Interruption(), None)
    with pytest.raises(Interruption):
        locker.release(lease, RETURNED, "d1")
    store.before = store.after = None
    told.clear()
    locker.release_later(lease, RETURNED, "d1")
    heartbeat.pay()

    assert onlooker.acquire(replace(DELIVERED, owner="copy")).ending == RETURNED
    assert [(type(event), event.outcome) for event in told] == [
        (events.ReleasedLease, "unreachable"),
        (events.ReleasedLate, "released"),
    ]
    assert heartbeat.watching == 0


def test_a_lease_whose_release_was_interrupted_before_it_began_is_renewed_no_more(acquire, locker, heartbeat):
    lease = acquire()
    locker.release_later(lease)

    assert lease.state is State.RELEASED
    assert heartbeat.watching == 0


def test_a_fork_makes_up_for_no_release(acquire, locker, heartbeat, onlooker):
    lease = acquire()
    lease.pid += 1
    locker.release_later(lease)

    assert heartbeat.noting == 0
    assert heartbeat.watching == 1
    lease.pid -= 1
    locker.release(lease)


def test_a_copy_that_asks_before_the_heartbeat_has_told_of_an_end_finds_it(
    locker, store, clock, down, heartbeat
):
    lease = locker.acquire(DELIVERED, source="the task", terms=Terms(), into=lambda lease: None)
    store.before = down
    locker.release(lease, RETURNED, "d1")
    clock.advance(30.1)
    copy = replace(DELIVERED, owner="copy")
    with pytest.raises(StoreUnavailable):
        locker.acquire(copy, source="the task", terms=Terms(), into=lambda lease: None)
    store.before = None
    answer = locker.acquire(copy, source="the task", terms=Terms(), into=lambda lease: None)

    assert answer.ending == RETURNED
    heartbeat.pay()
    assert heartbeat.noting == 0


def test_what_is_owed_for_one_key_costs_another_no_call(locker, acquire, store, down, monkeypatch):
    lease = locker.acquire(
        replace(DELIVERED, key="job:2"), source=None, terms=Terms(), into=lambda lease: None
    )
    store.before = down
    locker.release(lease, RETURNED, "d1")
    store.before = None
    released = []
    monkeypatch.setattr(store, "release", lambda *asked: released.append(asked))
    acquire()

    assert released == []


def test_what_is_owed_to_one_store_is_paid_to_no_other(  # noqa: PLR0917 - fixtures
    locker, store, down, heartbeat, clock, onlooker, request
):
    """The same key in another place is another key: an end that was written there would be a lie."""
    lease = locker.acquire(DELIVERED, source=None, terms=Terms(), into=lambda lease: None)
    store.before = down
    locker.release(lease, RETURNED, "d1")
    elsewhere = MemoryStore(f"not {request.node.name}", clock=clock)
    other = Locker(elsewhere, elsewhere, lambda _: None, place="elsewhere", heartbeat=heartbeat, clock=clock)
    copy = replace(DELIVERED, owner="copy")
    leases = []
    taken = other.acquire(copy, source=None, terms=Terms(), into=leases.append)

    assert leases == [taken]
    other.release(taken)
    store.before = None
    heartbeat.pay()
    assert onlooker.acquire(copy).ending == RETURNED


def test_a_release_frees_the_key_and_is_told_once(acquire, locker, onlooker, heartbeat, clock, told):  # noqa: PLR0917 - fixtures
    lease = acquire()
    clock.advance(5)
    told.clear()

    assert locker.release(lease) == Released()
    assert onlooker.holder("job:1") is None
    assert heartbeat.watching == 0
    assert lease.state is State.RELEASED
    assert told == [events.ReleasedLease("the task", "job:1", lease, "released", 5.0)]


def test_a_released_lease_is_never_renewed_into_existence(acquire, locker, onlooker, heartbeat, clock):
    locker.release(acquire())
    clock.advance(10)
    heartbeat.beat()

    assert onlooker.holder("job:1") is None


def test_a_release_of_what_another_has_touches_nothing_and_says_so(acquire, locker, onlooker, clock, told):
    lease = acquire("me")
    clock.advance(31)
    acquire("you")
    told.clear()
    answer = locker.release(lease)

    assert answer.reason == "taken"
    assert onlooker.holder("job:1").owner == "you"
    assert [type(event) for event in told] == [events.Lost, events.ReleasedLease]
    assert told[1].outcome == "gone"


def test_a_loss_that_only_the_release_finds_is_told(acquire, locker, onlooker, told, clock):
    lease = acquire("me")
    onlooker.force_release("job:1")
    told.clear()
    locker.release(lease)

    assert [(type(event), getattr(event, "reason", None)) for event in told] == [
        (events.Lost, "force_released"),
        (events.ReleasedLease, None),
    ]
    with pytest.raises(LeaseLost, match="an operator"):
        lease.check()


@pytest.fixture
def come_and_go(onlooker):
    """A successor has the key, and gives it back."""

    def come_and_go(owner="you"):
        successor = Claim("job:1", owner, 30.0)
        onlooker.release(successor, onlooker.acquire(successor).token)

    return come_and_go


@pytest.mark.parametrize("then_held", [False, True])
def test_a_release_whose_reply_was_lost_is_no_loss_although_others_had_the_key_before_it_was_asked_again(  # noqa: PLR0917 - fixtures
    acquire, locker, store, onlooker, come_and_go, told, then_held
):
    def between():
        come_and_go()
        if then_held:
            onlooker.acquire(Claim("job:1", "a third", 30.0))

    lease = acquire("me")
    store.between = between
    told.clear()
    answer = locker.release(lease)

    assert (answer.reason, answer.repeated) == ("taken" if then_held else "superseded", True)
    assert [(type(event), event.outcome) for event in told] == [(events.ReleasedLease, "released")]
    assert lease.state is State.RELEASED


def test_a_renewal_that_finds_a_successor_while_the_release_is_not_answered_yet_is_no_loss(  # noqa: PLR0917 - fixtures
    acquire, locker, store, onlooker, heartbeat, clock, come_and_go, told
):
    noticed = []

    def between():
        come_and_go()
        onlooker.acquire(Claim("job:1", "a third", 30.0))
        clock.advance(10)
        heartbeat.beat()

    lease = acquire("me", on_lost=noticed.append)
    store.between = between
    told.clear()
    locker.release(lease)

    assert [getattr(event, "outcome", event) for event in told] == ["released"]
    assert noticed == []
    assert heartbeat.watching == 0


def test_a_release_that_takes_longer_than_the_trust_lasts_is_no_loss_but_the_lease_says_no_meanwhile(
    acquire, locker, store, clock, told
):
    lease = acquire("me", ttl=30)
    said = []

    def between():
        clock.advance(29)
        said.append(lease.lost)

    store.between = between
    told.clear()
    locker.release(lease)

    assert said == [True]
    assert [event.outcome for event in told] == ["released"]


def test_what_a_lease_that_was_lost_before_is_told_at_a_repeated_release_stays_a_loss(  # noqa: PLR0917 - fixtures
    acquire, locker, store, come_and_go, clock, told
):
    lease = acquire("me")
    clock.advance(31)
    come_and_go()
    store.between = lambda: None
    told.clear()
    locker.release(lease)

    assert [type(event) for event in told] == [events.Lost, events.ReleasedLease]
    assert told[1].outcome == "gone"


def test_a_force_release_that_only_a_repeated_release_finds_is_told(acquire, locker, store, onlooker, told):
    lease = acquire("me")
    onlooker.force_release("job:1")
    store.between = lambda: None
    told.clear()
    locker.release(lease)

    assert [getattr(event, "reason", None) for event in told] == ["force_released", None]


def test_a_release_that_the_store_never_got_raises_nothing_and_ends_with_the_ttl(  # noqa: PLR0917 - fixtures
    acquire, locker, store, onlooker, heartbeat, clock, down, told
):
    lease = acquire()
    store.before = down
    told.clear()

    assert locker.release(lease) is None
    assert [(event.outcome, event.error) for event in told] == [("unreachable", down)]
    assert heartbeat.watching == 0
    clock.advance(30.1)
    assert onlooker.holder("job:1") is None


def test_a_lost_reply_to_a_release_can_be_asked_for_again(acquire, locker, store, onlooker, down):
    lease = acquire()
    store.after = down
    assert locker.release(lease) is None
    store.after = None

    assert locker.release(lease) == Released()
    assert onlooker.holder("job:1") is None


def test_a_loss_stops_the_body_before_anybody_is_told_of_it(acquire, onlooker, heartbeat, clock, told):
    """Whom it is told to may take their time, or hang."""
    lease = acquire(stop=told.append, on_lost=lambda _: told.append("hook"))
    onlooker.force_release("job:1")
    told.clear()
    clock.advance(10)
    heartbeat.beat()

    assert told == [lease, events.Lost("the task", "job:1", lease, "force_released"), "hook"]


def test_a_loss_is_told_to_observers_and_to_the_holder_once(acquire, onlooker, heartbeat, clock, told):
    noticed = []
    lease = acquire(on_lost=noticed.append)
    onlooker.force_release("job:1")
    told.clear()
    clock.advance(10)
    heartbeat.beat()
    assert lease.lost

    assert noticed == [lease]
    assert told == [events.Lost("the task", "job:1", lease, "force_released")]


def test_the_terms_reach_the_lease(acquire):
    lease = acquire(terms=Terms(renew_fraction=0.25, max_hold=90.0))

    assert (lease.renew_fraction, lease.max_hold) == (0.25, 90.0)


def test_a_vanished_lease_is_put_back_with_its_token(acquire, onlooker, heartbeat, clock, told):
    lease = acquire()
    onlooker.flush()
    told.clear()
    clock.advance(10)
    heartbeat.beat()

    assert onlooker.holder("job:1").token == lease.token
    assert [event.reinstated for event in told] == [True]


def test_renewal_sets_the_time_left_and_never_adds_to_it(acquire, onlooker, heartbeat, clock):
    acquire(ttl=10)
    left = []
    while clock() < 1060:
        clock.advance(0.1)
        heartbeat.beat()
        left.append(onlooker.holder("job:1").ttl_left)

    assert max(left) <= 10.001
    assert min(left) > 10 / 3


def test_a_paused_holder_does_not_renew_its_successors_lease(acquire, onlooker, heartbeat, clock, told):
    """N05: paused beyond its TTL, another takes over, the paused one wakes up."""
    mine = acquire("me", ttl=3)
    heartbeat.forget(mine)
    clock.advance(5)
    yours = acquire("you", ttl=3)
    heartbeat.forget(yours)
    heartbeat.watch(mine, told.append)
    heartbeat.beat()

    assert mine.lost
    assert yours.token > mine.token
    clock.advance(3.01)
    assert onlooker.holder("job:1") is None


def test_a_fork_that_leaves_through_the_run_does_not_give_the_lease_back(acquire, locker, onlooker, told):
    """`os.fork()` in a body, and `sys.exit()` in the child: every `finally` of the run is passed there, too."""
    lease = acquire()
    child = os.fork()
    if child == 0:
        answer = locker.release(lease)
        untouched = answer is None and onlooker.holder("job:1") is not None
        os._exit(0 if untouched and len(told) == 1 else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(locker.release(lease), Released)
    assert onlooker.holder("job:1") is None
