"""
Each store against one explicit model of what the protocol promises.

The model knows nothing of Lua or of locks: three facts per key and the rules of
`celery_fence.locking.store`. Hypothesis draws questions, repeated questions, late
questions with old tokens, expiries, evictions and losses of everything, and after
each step the store and the model must agree on every answer and every holder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_fence.locking.store import (
    Claim,
    Ended,
    ForceReleased,
    Gone,
    Granted,
    Held,
    Kept,
    Released,
    Renewal,
)
from celery_fence.stores import from_url
from celery_fence.stores.memory import MemoryStore
from celery_fence.testing.clock import FakeClock
from celery_fence.testing.servers import NoServerError, embedded_server

NIGHTLY = os.environ.get("FENCE_HYPOTHESIS") == "nightly"
RUN = settings(
    max_examples=2000 if NIGHTLY else 120,
    stateful_step_count=50 if NIGHTLY else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)

# Some would share names if the layout were not injective; "k:token" and "{21}" lie in one bucket.
KEYS = ("k", "k:token", "token:k", "a{b}", "{21}")
OWNERS = ("ann", "bob", "cy")
TTL = 600.0
AHEAD = 3600 * 1_000_000

keys = st.sampled_from(KEYS)
owners = st.sampled_from(OWNERS)


@dataclass
class Grant:
    """What a holder remembers."""

    key: str
    owner: str
    token: int
    since: float

    @property
    def claim(self):
        return Claim(self.key, self.owner, TTL)


@dataclass
class KeyModel:
    """All that counts about one key."""

    holder: Grant | None = None
    last: int = 0
    released: str | None = None
    forced: int = 0
    highest_ever: int = 0

    ahead: bool = False

    def evict_counter(self):
        self.last, self.released, self.forced = 0, None, 0
        if self.ahead:
            # The limit of the rule: a clock that stepped back AND a lost counter.
            self.highest_ever = 0

    def why_gone(self, owner, token):
        if self.holder and self.holder.owner != owner:
            return "taken"
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

    @rule(key=keys, owner=owners, target=grants)
    def acquire(self, key, owner):
        model = self.model[key]
        answer = self.store.acquire(Claim(key, owner, TTL))
        held = model.holder
        if model.released == owner:
            assert answer == Ended()
        elif held and held.owner != owner:
            assert isinstance(answer, Held)
            assert (answer.holder.owner, answer.holder.token) == (held.owner, held.token)
        elif held:
            assert answer == Granted(held.token, held.since)
            model.last = max(model.last, held.token)
        else:
            self.check_new_token(model, answer)
            model.holder = Grant(key, owner, answer.token, answer.since)
        return model.holder or Grant(key, owner, model.last, 1.0)

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
        if held and held.owner == grant.owner and held.token <= grant.token:
            assert answer == Kept()
            model.holder = Grant(grant.key, grant.owner, grant.token, held.since)
            return
        reason = model.why_gone(grant.owner, grant.token)
        if reason:
            self.check_gone(answer, reason, held)
            return
        assert answer == Kept(reinstated=True)
        model.holder = grant
        model.last = grant.token

    def check_gone(self, answer, reason, held):
        assert isinstance(answer, Gone)
        assert answer.reason == reason
        if reason == "taken":
            assert (answer.holder.owner, answer.holder.token) == (held.owner, held.token)

    @rule(grant=grants, knows_token=st.booleans())
    def release(self, grant, knows_token):
        model, held = self.model[grant.key], self.model[grant.key].holder
        token = grant.token if knows_token else 0
        answer = self.store.release(grant.claim, token)
        if model.released == grant.owner:
            assert answer == Released()
            return
        reason = model.why_gone(grant.owner, token)
        if reason and not (held and held.owner == grant.owner):
            self.check_gone(answer, reason, held)
            return
        assert answer == Released()
        model.last = max(model.last, token, held.token if held else 0)
        model.holder, model.released = None, grant.owner

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

    @rule(key=keys)
    def the_lease_expires(self, key):
        self.world.expire(key)
        self.model[key].holder = None

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
            assert TTL - 60 < found.ttl_left <= TTL

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
        self.store._keep_counter(key, replace(counter, token=token), self.clock())

    def expire(self, key):
        self.store._space.leases.pop(key, None)

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
