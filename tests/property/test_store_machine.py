"""
Each store against one explicit model of what the protocol promises.

The model knows nothing of Lua or of locks: a few facts per key and the rules of
`celery_fence.locking.store`. Hypothesis draws questions, repeated questions, late
questions with old tokens, copies of deliveries, ends and notes, expiries with and
without a lost delay, evictions and losses of everything, and after each step the store
and the model must agree on every answer and every holder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_fence.locking.store import (
    Claim,
    DeliveryEnded,
    Ended,
    Ending,
    ForceReleased,
    Gone,
    Granted,
    Held,
    Kept,
    Note,
    Released,
    Renewal,
)
from celery_fence.stores import from_url
from celery_fence.stores.memory import MemoryStore
from celery_fence.testing.clock import FakeClock
from celery_fence.testing.servers import NoServerError, embedded_server

NIGHTLY = os.environ.get("FENCE_HYPOTHESIS") == "nightly"
RUN = settings(
    max_examples=2000 if NIGHTLY else 200,
    stateful_step_count=50 if NIGHTLY else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)

# Some would share names if the layout were not injective; "k:token" and "{21}" lie in one bucket.
KEYS = ("k", "k:token", "token:k", "a{b}", "{21}")
OWNERS = ("ann", "bob", "cy")
DELIVERIES = ("", "d1", "d2")
TTL = 600.0
LOST_DELAY = 300.0
AHEAD = 3600 * 1_000_000

# Mostly one key: what goes wrong needs several questions about the same.
keys = st.just("k") | st.sampled_from(KEYS)
owners = st.sampled_from(OWNERS)
deliveries = st.sampled_from(DELIVERIES)
hows = st.sampled_from(["returned", "failed", "retried"])
claims = st.builds(
    Claim,
    keys,
    owners,
    st.just(TTL),
    delivery=deliveries,
    message=st.sampled_from(["", "m1", "m2"]),
    if_held=st.sampled_from(["", "skipped", "raised"]),
    lost_delay=st.sampled_from([0.0, LOST_DELAY]),
)
endings = st.builds(Ending, hows, st.sampled_from([None, b"", b"\x00\xff\r\n"]))


@dataclass
class Grant:
    """What a holder remembers."""

    claim: Claim
    token: int
    since: float
    closed: bool = False

    @property
    def key(self):
        return self.claim.key

    @property
    def owner(self):
        return self.claim.owner


@dataclass
class Marker:
    """How a delivery ended, by whose word; *held* is what that owner was told, where it decided so on a miss."""

    ending: Ending
    by: str
    noted: bool = False
    held: Held | None = None


@dataclass
class KeyModel:
    """All that counts about one key."""

    holder: Grant | None = None
    last: int = 0
    released: str | None = None
    forced: int = 0
    highest_ever: int = 0

    ahead: bool = False
    markers: dict[str, Marker] = field(default_factory=dict)

    def evict_counter(self):
        self.last, self.released, self.forced = 0, None, 0
        if self.ahead:
            # The limit of the rule: a clock that stepped back AND a lost counter.
            self.highest_ever = 0

    def is_held_by(self, owner):
        return self.holder is not None and self.holder.owner == owner

    def is_held_by_a_copy_of(self, claim):
        return self.holder is not None and self.holder.claim.delivery == claim.delivery

    def why_gone(self, owner, token):
        if self.holder and self.holder.owner != owner:
            return "taken"
        if self.holder and self.holder.closed:
            return "expired"
        if self.released == owner:
            return "released"
        if self.forced >= token:
            return "force_released"
        newest = max(self.last, self.holder.token if self.holder else 0)
        return "superseded" if newest > token else None


class StoreMachine(RuleBasedStateMachine):
    """Subclasses give *make_world*, whose worlds have a store and the faults."""

    make_world: staticmethod

    grants = Bundle("grants")

    def __init__(self):
        super().__init__()
        self.world = self.make_world()
        self.store = self.world.store
        self.model = {key: KeyModel() for key in KEYS}

    def teardown(self):
        self.store.close()

    @rule(claim=claims, target=grants)
    def ask(self, claim):
        return self.acquire(claim)

    def acquire(self, claim):
        model = self.model[claim.key]
        answer = self.store.acquire(claim)
        held, marker = model.holder, model.markers.get(claim.delivery)
        if model.is_held_by(claim.owner) and not held.closed:
            assert answer == Granted(held.token, held.since)
            model.last = max(model.last, held.token)
            model.holder = Grant(claim, held.token, held.since)
        elif marker:
            self.check_ended(marker, claim.owner, answer)
        elif model.released == claim.owner:
            assert answer == Ended()
        elif held:
            self.check_held(model, claim, answer)
        else:
            self.check_new_token(model, answer)
            model.holder = Grant(claim, answer.token, answer.since)
        return (
            Grant(claim, model.holder.token, model.holder.since)
            if model.holder
            else Grant(claim, model.last, 1.0)
        )

    @rule(earlier=grants, owner=st.none() | owners, target=grants)
    def ask_again(self, earlier, owner):
        """A late copy of an owner's question, or a copy of the message that asks with a new one."""
        return self.acquire(replace(earlier.claim, owner=owner or earlier.owner))

    def check_ended(self, marker, owner, answer):
        if marker.held and marker.by == owner:
            assert answer == marker.held
            return
        assert isinstance(answer, DeliveryEnded)
        assert (answer.ending, answer.noted) == (marker.ending, marker.noted)
        assert answer.holder == (marker.held and marker.held.holder)
        assert 0 <= answer.age < TTL

    def check_held(self, model, claim, answer):
        held = model.holder
        assert isinstance(answer, Held)
        found = answer.holder
        assert (found.owner, found.token, found.closed) == (held.owner, held.token, held.closed)
        akin = claim.message and claim.message == held.claim.message
        if claim.if_held and claim.delivery and not akin:
            model.markers[claim.delivery] = Marker(Ending(claim.if_held), claim.owner, held=answer)

    def check_new_token(self, model, answer):
        assert isinstance(answer, Granted)
        assert answer.token > model.last
        assert answer.token > model.highest_ever
        model.last = model.highest_ever = answer.token

    @rule(batch=st.lists(grants, max_size=6))
    def renew(self, batch):
        answers = self.store.renew([Renewal(grant.claim, grant.token, grant.since) for grant in batch])

        assert len(answers) == len(batch)
        for grant, answer in zip(batch, answers, strict=True):
            self.check_renewal(self.model[grant.key], grant, answer)

    def check_renewal(self, model, grant, answer):
        held = model.holder
        if model.is_held_by(grant.owner) and held.token <= grant.token and not held.closed:
            assert answer == Kept()
            model.holder = replace(held, token=grant.token)
            return
        reason = model.why_gone(grant.owner, grant.token)
        if reason:
            self.check_gone(answer, reason, held)
            return
        assert answer == Kept(reinstated=True)
        model.holder = replace(grant)
        model.last = grant.token

    def check_gone(self, answer, reason, held):
        assert isinstance(answer, Gone)
        assert answer.reason == reason
        if reason == "taken":
            assert (answer.holder.owner, answer.holder.token) == (held.owner, held.token)

    @rule(grant=grants, knows_token=st.booleans(), ending=st.none() | endings)
    def release(self, grant, knows_token, ending):
        claim, model = grant.claim, self.model[grant.key]
        token = grant.token if knows_token else 0
        answer = self.store.release(claim, token, ending)
        again, mine = model.released == claim.owner, model.is_held_by(claim.owner)
        reason = None if again or mine else model.why_gone(claim.owner, token)
        marker = model.markers.get(claim.delivery)
        if reason:
            self.check_gone(answer, reason, model.holder)
            assert answer.ended == (marker is not None and marker.by != claim.owner)
        else:
            assert answer == Released()
        rightful = not (again or reason)
        copy_holds = not mine and model.is_held_by_a_copy_of(claim)
        news = marker is None or (rightful and marker.by != claim.owner and not marker.noted)
        if ending and claim.delivery and news and not copy_holds:
            model.markers[claim.delivery] = Marker(ending, claim.owner)
        if rightful:
            model.last = max(model.last, token, model.holder.token if model.holder else 0)
            model.holder, model.released = None, claim.owner

    @rule(batch=st.lists(grants, max_size=4), how=hows)
    def note(self, batch, how):
        notes = [Note(grant.key, grant.claim.delivery, how, 3600.0) for grant in batch]
        self.store.note(notes)
        for note in notes:
            if note.delivery:
                marker = self.model[note.key].markers.setdefault(note.delivery, Marker(Ending(how), ""))
                marker.ending, marker.noted = Ending(marker.ending.how), True

    @rule(key=keys, owner=st.none() | owners)
    def force_release(self, key, owner):
        model, held = self.model[key], self.model[key].holder
        answer = self.store.force_release(key, owner)
        if held and owner not in {None, held.owner}:
            assert isinstance(answer, Held)
            assert answer.holder.owner == held.owner
            return
        assert isinstance(answer, ForceReleased)
        assert (answer.holder and answer.holder.owner) == (held and held.owner)
        fence = self.world.counter(key)
        assert fence > max(model.last, held.token if held else 0)
        assert model.ahead or fence > model.highest_ever
        model.holder, model.last, model.forced = None, fence, fence
        model.highest_ever = max(model.highest_ever, fence)

    @rule(grant=grants)
    def the_lease_expires(self, grant):
        """And closes the key, or opens one that has been closed."""
        key, held = grant.key, self.model[grant.key].holder
        if held and held.claim.lost_delay and not held.closed:
            self.world.close(key)
            held.closed = True
            return
        self.world.expire(key)
        self.model[key].holder = None

    @rule(grant=grants)
    def a_marker_expires(self, grant):
        key, delivery = grant.key, grant.claim.delivery
        self.world.forget(key, delivery)
        self.model[key].markers.pop(delivery, None)

    @rule(key=keys)
    def tokens_run_ahead_of_the_clock(self, key):
        """As after a step of the clock back: from now on tokens grow by one."""
        model = self.model[key]
        model.last = model.highest_ever = max(model.last, model.highest_ever) + AHEAD
        model.ahead = True
        self.world.set_counter(key, model.last)

    @rule(key=keys)
    def the_counter_is_evicted(self, key):
        self.world.evict_counter(key)
        self.model[key].evict_counter()

    @rule()
    def everything_is_lost(self):
        self.world.flush()
        for model in self.model.values():
            model.holder = None
            model.markers.clear()
            model.evict_counter()

    @rule()
    def the_scripts_are_forgotten(self):
        self.world.forget_scripts()

    @invariant()
    def the_store_names_the_holders_of_the_model(self):
        self.world.tick()
        for key, model in self.model.items():
            found, held = self.store.holder(key), model.holder
            if held is None:
                assert found is None
                continue
            assert (found.owner, found.token, found.since) == (held.owner, held.token, held.since)
            assert found.closed == held.closed
            full = LOST_DELAY if held.closed else TTL
            assert full - 60 < found.ttl_left <= full

    @rule()
    def all_holders_are_listed(self):
        listed = {(holder.key, holder.owner) for holder in self.store.leases()}

        assert listed == {(key, model.holder.owner) for key, model in self.model.items() if model.holder}


class RedisWorld:
    """A real server and its faults."""

    def __init__(self, server):
        self.store = from_url(server.url)
        self.client = redis.Redis.from_url(server.url)
        self.client.flushall()

    def tick(self):
        """Its clock moves by itself."""

    def names(self, key):
        return self.store._names.of(key.encode())

    def counter(self, key):
        return int(self.client.hget(self.names(key)[1], "token"))

    def set_counter(self, key, token):
        self.client.hset(self.names(key)[1], "token", token)
        self.client.pexpire(self.names(key)[1], 600_000)

    def expire(self, key):
        self.client.pexpire(self.names(key)[0], 0)

    def close(self, key):
        self.client.pexpire(self.names(key)[0], round(LOST_DELAY * 1000))

    def forget(self, key, delivery):
        self.client.delete(self.store._names.done(key.encode(), delivery.encode()))

    def evict_counter(self, key):
        self.client.delete(self.names(key)[1])

    def flush(self):
        self.client.flushall()

    def forget_scripts(self):
        self.client.script_flush()


class MemoryWorld:
    """The memory store and the same faults."""

    def __init__(self):
        self.clock = FakeClock()
        self.store = MemoryStore("machine", clock=self.clock)
        self.store.flush()

    def tick(self):
        self.clock.advance(0.001)

    def counter(self, key):
        return self.store._space.counters[key].token

    def set_counter(self, key, token):
        counter = self.store._counter(key, self.clock())
        self.store._space.keep_counter(key, replace(counter, token=token), self.clock())

    def expire(self, key):
        self.store._space.leases.pop(key, None)

    def close(self, key):
        leases = self.store._space.leases
        leases[key] = replace(leases[key], expires=self.clock())

    def forget(self, key, delivery):
        self.store._space.markers.pop((key, delivery), None)

    def evict_counter(self, key):
        self.store._space.counters.pop(key, None)

    def flush(self):
        self.store.flush()

    def forget_scripts(self):
        """It has none."""


@pytest.fixture(scope="module")
def server():
    try:
        with embedded_server() as running:
            yield running
    except NoServerError as error:
        pytest.skip(str(error))


def test_the_redis_scripts_do_what_the_model_says(server):
    class Machine(StoreMachine):
        make_world = staticmethod(lambda: RedisWorld(server))

    run_state_machine_as_test(Machine, settings=RUN)


def test_the_memory_store_does_what_the_model_says():
    class Machine(StoreMachine):
        make_world = staticmethod(MemoryWorld)

    run_state_machine_as_test(Machine, settings=RUN)
