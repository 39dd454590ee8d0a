"""`hold`: a lease around a block, in a task or anywhere else."""

from __future__ import annotations

import celery
import pytest

from celery_fence import (
    ConfigError,
    Contended,
    FencedTask,
    LeaseLost,
    LockKeyError,
    StoreUnavailable,
    current_lease,
    hold,
    signals,
)
from celery_fence.task import asking as module
from celery_fence.testing.clock import FakeClock


@pytest.fixture
def sync(app):
    @app.task(base=FencedTask, bind=True, lock_key="tenant:<tenant_id>:sync", lock_ttl=7.0, name="sync")
    def sync(self, tenant_id, *, fencing_token):
        return fencing_token

    return sync


class Waits(list):
    """The sleeps of `hold`, in seconds: none takes any time, and *meanwhile* is called in each."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.meanwhile = lambda: None

    def sleep(self, seconds):
        self.append(seconds)
        self.clock.advance(seconds)
        self.meanwhile()


@pytest.fixture
def waits(monkeypatch):
    waits = Waits()
    monkeypatch.setattr(module.time, "sleep", waits.sleep)
    monkeypatch.setattr(module, "steady_clock", lambda: waits.clock)
    return waits


def test_a_template_with_its_values_names_the_key(app, leases):
    with hold("invoice:<id>", {"id": 48291}, app=app) as lease:
        assert lease.key == "invoice:48291"
        assert leases.holder("invoice:48291").token == lease.token
        assert current_lease() is lease
    assert leases.holder("invoice:48291") is None
    assert current_lease() is None


def test_a_text_without_placeholders_is_the_key(app):
    with hold("nightly", app=app) as lease:
        assert (lease.key, lease.ttl) == ("nightly", 30.0)


def test_the_signature_of_a_fenced_task_gives_its_key_and_ttl(app, sync, leases):
    with hold(sync.s(42), app=app) as lease:
        assert (lease.key, lease.ttl) == ("tenant:42:sync", 7.0)
        assert sync(42) == sync.apply((42,)).get() == lease.token
    with hold(sync.s(tenant_id=42), app=app, ttl=9) as lease:
        assert (lease.key, lease.ttl) == ("tenant:42:sync", 9.0)


def test_the_app_is_celerys_current_one_where_none_is_given(app, leases):
    before = celery.current_app._get_current_object()
    app.set_current()
    try:
        with hold("here"):
            assert leases.holder("here")
    finally:
        before.set_current()


def test_a_held_key_is_contended_at_once_and_says_by_whom(app, occupy, waits):
    occupy("invoice:7", task_name="other.task", task_id="their-id", host="web-1")

    by_whom = r"'invoice:7' is held by other\.task\[their-id\] on web-1"
    with pytest.raises(Contended, match=by_whom) as caught, hold("invoice:<id>", {"id": 7}, app=app):
        pytest.fail("entered")
    assert waits == []
    assert caught.value.key == "invoice:7"
    assert caught.value.holder.owner == "somebody else"


def test_a_holder_that_is_no_task_is_named_by_its_process_and_host(app, occupy):
    occupy("invoice:7", host="web-1", pid=4711)

    with pytest.raises(Contended, match="held by process 4711 on web-1, "), hold("invoice:7", app=app):
        pytest.fail("entered")


def test_waiting_polls_at_most_20_times_a_second_and_takes_the_key_once_it_is_free(
    app, occupy, leases, waits
):
    occupy("k")
    waits.meanwhile = lambda: waits.clock.now - 1_750_000_000 > 10 and leases.force_release("k")
    with hold("k", wait=30, app=app) as lease:
        waited = waits.clock.now - 1_750_000_000

    assert 10 < waited < 11
    assert min(waits) >= 0.05
    assert max(waits) <= 0.65
    assert lease.token


def test_waiting_ends_with_its_bound_and_says_so(app, occupy, waits):
    occupy("k")
    with pytest.raises(Contended, match="wasn't free within 2 s") as caught, hold("k", wait=2, app=app):
        pytest.fail("entered")

    assert sum(waits) == pytest.approx(2)
    assert caught.value.waited == 2


def test_waiting_may_be_longer_than_the_ttl_and_trust_counts_from_the_last_asking(app, occupy, leases, waits):
    occupy("k")
    waits.meanwhile = lambda: waits.clock.now - 1_750_000_000 > 20 and leases.force_release("k")
    with hold("k", ttl=2, wait=60, app=app) as lease:
        assert lease.trusted_for > 1.5


def test_an_expiring_holder_is_not_waited_for_longer_than_it_lives(app, occupy):
    occupy("k", ttl=0.15)
    with hold("k", wait=10, app=app) as lease:
        assert lease.token


def test_the_wait_is_told(app, occupy, leases, waits):
    told = []

    def hears(waited, **_):
        told.append(waited)

    occupy("k")
    waits.meanwhile = lambda: waits.clock.now - 1_750_000_000 > 3 and leases.force_release("k")
    signals.lease_acquired.connect(hears)
    with hold("k", wait=10, app=app):
        pass
    signals.lease_acquired.disconnect(hears)

    assert told == [pytest.approx(sum(waits))]
    assert told[0] > 3


def test_a_block_in_a_block_on_the_same_key_gets_the_same_lease_and_the_outer_one_releases(app, leases):
    with hold("k", app=app) as outer:
        with hold("k", app=app) as inner:
            assert inner is outer
        assert leases.holder("k")
        outer.check()
    assert leases.holder("k") is None


def test_after_a_loss_the_same_key_is_asked_for_again(app, leases):
    with hold("k", app=app) as outer:
        leases.force_release("k")
        with pytest.raises(LeaseLost):
            outer.verify()
        with hold("k", app=app) as inner:
            assert inner.token > outer.token


def test_an_error_of_the_block_is_kept_and_the_key_is_free(app, leases):
    with pytest.raises(KeyError, match="mine"), hold("k", app=app):
        raise KeyError("mine")
    assert leases.holder("k") is None


def test_outside_of_a_task_a_loss_aborts_nothing_but_check_tells(app, leases):
    with hold("k", ttl=0.3, app=app) as lease:
        leases.force_release("k")
        lease.lose("force_released")
        assert lease.lost
        with pytest.raises(LeaseLost):
            lease.check()


def test_in_a_task_the_block_on_its_own_key_shares_its_lease(app, leases):
    seen = []

    @app.task(base=FencedTask, bind=True, lock_key="job:<key>", name="shares")
    def shares(self, key):
        with hold("job:<key>", {"key": key}) as lease:
            seen.append(lease is self.lease)
        seen.append(leases.holder("job:k") is not None)

    shares.apply(("k",))

    assert seen == [True, True]
    assert leases.holder("job:k") is None


def test_in_a_task_the_block_belongs_to_the_task_and_its_app(app, leases):
    senders = []

    def hears(sender, key, **_):
        senders.append((sender.name, key))

    @app.task(base=FencedTask, bind=True, lock_key="job:<key>", name="has a block")
    def has_a_block(self, key):
        with hold("other:<key>", {"key": key}) as lease:
            holder = leases.holder("other:k")
            return [lease.key, current_lease() is lease, self.lease.key, holder.facts.task_name]

    signals.lease_acquired.connect(hears)
    value = has_a_block.apply(("k",)).get()
    signals.lease_acquired.disconnect(hears)

    assert value == ["other:k", True, "job:k", "has a block"]
    assert senders == [("has a block", "job:k"), ("has a block", "other:k")]


def test_a_held_block_that_leaves_the_body_of_a_task_is_a_miss_of_the_task(app, occupy, in_worker, sent):
    @app.task(base=FencedTask, lock_key="job:<key>", miss_policy="retry", name="misses inside")
    def misses_inside(key):
        with hold("other"):
            pytest.fail("entered")

    occupy("other")
    outcome = in_worker(misses_inside, "k")

    assert outcome.state == "RETRY"
    assert sent[0][0]["fence"]["misses"]["total"] == 1


@pytest.mark.parametrize(
    "arguments, names",
    [
        ({"key": "a:{id}", "values": {"id": 1}}, "<id>"),
        ({"key": "a:<id>", "values": {"id": 1}, "ttl": 0}, "hold(ttl=...)"),
        ({"key": "a:<id>", "values": {"id": 1}, "ttl": "7"}, "hold(ttl=...)"),
        ({"key": "a:<id>", "values": {"id": 1}, "wait": -1}, "hold(wait=...)"),
        ({"key": "a:<id>", "values": 7}, "hold('a:<id>') takes the values of its placeholders as a mapping"),
        ({"key": "a:<id>", "values": [("id", 1)]}, "such as {'id': 7}, not [('id', 1)]"),
        ({"key": celery.signature("any.task"), "values": {"id": 1}}, "a signature has its own arguments"),
        ({"key": 7}, "int"),
        ({"key": celery.signature("unknown.task")}, "unknown.task"),
    ],
)
def test_bad_input_is_refused_by_name(app, arguments, names):
    with pytest.raises(ConfigError) as caught, hold(app=app, **arguments):
        pytest.fail("entered")
    assert names in str(caught.value)


@pytest.mark.parametrize("values", [{}, {"id": None}, {"id": ""}])
def test_a_key_that_cannot_be_built_names_its_field(app, values):
    with pytest.raises(LockKeyError, match="id"), hold("invoice:<id>", values, app=app):
        pytest.fail("entered")


def test_a_store_that_is_away_is_no_contention(app, down, monkeypatch):
    def away(self, *_):
        raise down

    monkeypatch.setattr("celery_fence.stores.memory.MemoryStore.acquire", away)
    with pytest.raises(StoreUnavailable), hold("k", wait=5, app=app):
        pytest.fail("entered")


class TestADirectCall:
    def test_runs_with_a_token_and_leaves_nothing(self, sync, leases):
        assert sync(42) > 0
        assert leases.holder("tenant:42:sync") is None

    def test_on_a_held_key_is_contended_and_runs_nothing(self, app, sync, occupy):
        occupy("tenant:42:sync")
        with pytest.raises(Contended, match="tenant:42:sync"):
            sync(42)

    def test_without_a_store_runs_only_where_the_outage_policy_says_so(self, app, sync, down, monkeypatch):
        @app.task(base=FencedTask, bind=True, lock_key="k", outage_policy="run", name="runs anyway")
        def runs_anyway(self, *, fencing_token):
            self.lease.check()
            return fencing_token

        def away(self, *_):
            raise down

        monkeypatch.setattr("celery_fence.stores.memory.MemoryStore.acquire", away)
        assert runs_anyway() is None
        with pytest.raises(StoreUnavailable):
            sync(42)
