"""
Each store against the protocol model (`tests/chaos/model/`), in long random conversations.

The rules are those of the model that is explored there state by state; here their keys
and tokens are real. Hypothesis draws questions, repeated questions, late questions with
old tokens, copies of deliveries, ends and notes, expiries with and without a lost
delay, evictions, losses of everything and data of an earlier moment, and after each
step the store and the model must agree on every answer and every holder.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_fence.locking.store import DeliveryEnded, Ending, Granted, Note, Renewal
from celery_fence.stores import from_url
from celery_fence.stores.memory import MemoryStore
from celery_fence.testing.clock import FakeClock
from celery_fence.testing.servers import NoServerError, embedded_server
from tests.chaos.model.facts import Claim, Key
from tests.chaos.model.server import Server, expire, lose_counter
from tests.chaos.model.translation import TICK, answer_of, claim_of

# It talks to a server, and takes ten times as long on a machine that is as many times as busy.
pytestmark = pytest.mark.timeout(600)

NIGHTLY = os.environ.get("FENCE_HYPOTHESIS") == "nightly"
RUN = settings(
    max_examples=2000 if NIGHTLY else 200,
    stateful_step_count=50 if NIGHTLY else 30,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)

# Some would share names if the layout were not injective; "k:token" and "{21}" lie in one bucket.
KEYS = ("k", "k:token", "token:k", "a{b}", "{21}")
OWNERS = ("ann", "bob", "cy")
DELIVERIES = ("", "d1", "d2")
TTL = 2 * TICK
LOST_DELAY = TICK
AHEAD = 3600 * 1_000_000

# Mostly one key: what goes wrong needs several questions about the same.
keys = st.just("k") | st.sampled_from(KEYS)
owners = st.sampled_from(OWNERS)
deliveries = st.sampled_from(DELIVERIES)
hows = st.sampled_from(["returned", "failed", "retried"])
claims = st.builds(
    Claim,
    owners,
    st.just(2),
    st.sampled_from([0, 1]),
    deliveries,
    st.sampled_from(["", "m1", "m2"]),
    st.sampled_from(["", "skipped", "raised"]),
)
endings = st.builds(Ending, hows, st.sampled_from([None, b"", b"\x00\xff\r\n"]))


class Grant(NamedTuple):
    """What a holder remembers, or somebody who takes itself for one; *since* in us."""

    name: str
    claim: Claim
    token: int
    since: int


class StoreMachine(RuleBasedStateMachine):
    """Subclasses give *make_world*, whose worlds have a store and the faults."""

    make_world: staticmethod

    grants = Bundle("grants")

    def __init__(self):
        super().__init__()
        self.world = self.make_world()
        self.store = self.world.store
        self.rules = Server()
        self.model = dict.fromkeys(KEYS, Key())
        self.highest_ever = dict.fromkeys(KEYS, 0)
        self.ahead = set()
        self.copied = None

    def teardown(self):
        self.store.close()

    @rule(name=keys, claim=claims, target=grants)
    def ask(self, name, claim):
        return self.acquire(name, claim)

    @rule(earlier=grants, owner=st.none() | owners, target=grants)
    def ask_again(self, earlier, owner):
        """A late copy of an owner's question, or a copy of the message that asks with a new one."""
        return self.acquire(earlier.name, earlier.claim._replace(owner=owner or earlier.claim.owner))

    def acquire(self, name, claim):
        before = self.model[name]
        answer = self.store.acquire(claim_of(name, claim))
        if isinstance(answer, DeliveryEnded):
            assert 0 <= answer.age < TTL
        told = answer_of(answer)
        # The clock was at the moment of the grant; a token that runs ahead of it is the model's own.
        self.model[name], expected = self.rules.acquire(before, claim, told.since, told.since)
        assert told == expected
        if isinstance(answer, Granted) and not self.rules.is_granted(before, claim):
            assert answer.token > self.highest_ever[name]
            self.highest_ever[name] = answer.token
        lease = self.model[name].lease
        token = lease.token if lease else self.model[name].counter.token
        return Grant(name, claim, token, lease.since if lease else 1_000_000)

    @rule(batch=st.lists(grants, max_size=6))
    def renew(self, batch):
        answers = self.store.renew(
            [Renewal(claim_of(name, claim), token, since / 1_000_000) for name, claim, token, since in batch]
        )

        assert len(answers) == len(batch)
        for (name, *asked), answer in zip(batch, answers, strict=True):
            self.model[name], expected = self.rules.renew(self.model[name], *asked)
            assert answer_of(answer) == expected

    @rule(grant=grants, knows_token=st.booleans(), ending=st.none() | endings)
    def release(self, grant, knows_token, ending):
        name, claim, token, _ = grant
        known = token if knows_token else 0
        answer = answer_of(self.store.release(claim_of(name, claim), known, ending))
        how, value = (ending.how, ending.value) if ending else ("", None)
        # The clock was at the token that a release without one takes up.
        now = self.world.counter(name) if answer.word == "released" else 0
        self.model[name], expected = self.rules.release(self.model[name], claim, known, now, how, value)
        assert answer == expected
        self.highest_ever[name] = max(self.highest_ever[name], self.model[name].counter.token)

    @rule(batch=st.lists(grants, max_size=4), how=hows)
    def note(self, batch, how):
        self.store.note([Note(grant.name, grant.claim.delivery, how, 3600.0) for grant in batch])
        for name, claim, *_ in batch:
            self.model[name] = self.rules.note(self.model[name], claim.delivery, how)

    @rule(name=keys, owner=st.none() | owners)
    def force_release(self, name, owner):
        answer = answer_of(self.store.force_release(name, owner))
        fence = self.world.counter(name) if answer.word == "force_released" else 0
        self.model[name], expected = self.rules.force_release(self.model[name], fence, owner)
        assert answer == expected
        if fence:
            assert fence == self.model[name].counter.token
            assert name in self.ahead or fence > self.highest_ever[name]
            self.highest_ever[name] = max(self.highest_ever[name], fence)

    @rule(grant=grants)
    def the_lease_expires(self, grant):
        """And closes the key, or opens one that has been closed."""
        name = grant.name
        self.model[name] = expire(self.model[name])
        if self.model[name].lease:
            self.world.close(name)
        else:
            self.world.expire(name)

    @rule(grant=grants)
    def a_marker_expires(self, grant):
        self.world.forget(grant.name, grant.claim.delivery)
        self.model[grant.name] = self.model[grant.name].forget(grant.claim.delivery)

    @rule(name=keys)
    def tokens_run_ahead_of_the_clock(self, name):
        """As after a step of the clock back: from now on tokens grow by one."""
        counter = self.model[name].counter
        token = self.highest_ever[name] = max(counter.token, self.highest_ever[name]) + AHEAD
        self.model[name] = self.model[name]._replace(counter=counter._replace(token=token))
        self.ahead.add(name)
        self.world.set_counter(name, token)

    @rule(name=keys)
    def the_counter_is_evicted(self, name):
        self.world.evict_counter(name)
        self.model[name] = lose_counter(self.model[name])
        self.forget_the_highest(name)

    @rule()
    def everything_is_lost(self):
        self.world.flush()
        for name in KEYS:
            self.model[name] = Key()
            self.forget_the_highest(name)

    def forget_the_highest(self, name):
        """The limit of what is promised: a clock that stepped back AND a lost counter."""
        if name in self.ahead:
            self.highest_ever[name] = 0

    @rule()
    def a_replica_lags_from_now_on(self):
        self.copied = (self.model.copy(), self.world.copy())

    @precondition(lambda self: self.copied)
    @rule()
    def the_data_of_that_moment_come_back(self):
        model, bring_back = self.copied
        bring_back()
        self.model = model.copy()
        for name in KEYS:
            self.forget_the_highest(name)

    @rule()
    def the_scripts_are_forgotten(self):
        self.world.forget_scripts()

    @invariant()
    def the_store_names_the_holders_of_the_model(self):
        self.world.tick()
        for name, model in self.model.items():
            found, held = self.store.holder(name), model.lease
            if held is None:
                assert found is None
                continue
            assert (found.owner, found.token, round(found.since * 1_000_000)) == (
                held.owner,
                held.token,
                held.since,
            )
            assert found.closed == held.closed
            full = LOST_DELAY if held.closed else TTL
            assert full - 60 < found.ttl_left <= full

    @rule()
    def all_holders_are_listed(self):
        listed = {(holder.key, holder.owner) for holder in self.store.leases()}

        assert listed == {(name, model.lease.owner) for name, model in self.model.items() if model.lease}


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

    def copy(self):
        kept = [(name, self.client.pttl(name), self.client.dump(name)) for name in self.client.scan_iter()]

        def bring_back():
            self.client.flushall()
            for name, left_ms, data in kept:
                self.client.restore(name, left_ms, data)

        return bring_back

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

    def copy(self):
        kinds = ("leases", "counters", "markers", "records")
        copies = {kind: getattr(self.store._space, kind).copy() for kind in kinds}

        def bring_back():
            for kind, data in copies.items():
                setattr(self.store._space, kind, data.copy())

        return bring_back

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
