"""
Idempotency records against a model of a page, in long random conversations.

Three owners do two pieces of work under two lock keys, with and without a record, ask and
release again, late and with old tokens; leases expire, are taken by force, and all is lost.
After each step the store's answer and its records are those of the model. The leases
themselves are held to their own model (`test_store_machine.py`): here only whether there was
a grant, and what a release said, is taken from the store.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_fence.locking.records import ClaimedElsewhere, Done
from celery_fence.locking.store import Claim, DeliveryEnded, Ended, Ending, Gone, Granted, Held
from celery_fence.stores import from_url
from celery_fence.stores.memory import MemoryStore
from celery_fence.testing.clock import FakeClock
from celery_fence.testing.servers import NoServerError, embedded_server

NIGHTLY = os.environ.get("FENCE_HYPOTHESIS") == "nightly"
RUN = settings(
    max_examples=2000 if NIGHTLY else 150,
    stateful_step_count=50 if NIGHTLY else 30,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)

TTL = 600.0
WORK = ("order:1", "{21}")
keys = st.sampled_from(["k", "a{b}"])
works = st.just(WORK[0]) | st.sampled_from(["", *WORK])
owners = st.sampled_from(["ann", "bob", "cy"])
deliveries = st.sampled_from(["", "d1"])
endings = st.none() | st.builds(
    Ending,
    st.sampled_from(["returned", "returned", "failed"]),
    st.none(),
    st.sampled_from([None, b"", b"\x00\r\n"]),
)


class Known(NamedTuple):
    """The model of a record."""

    key: str
    owner: str
    token: int
    done: bool = False
    value: bytes | None = None


class Grant(NamedTuple):
    claim: Claim
    token: int


class RecordMachine(RuleBasedStateMachine):
    """Subclasses give *make_world*, whose worlds have a store and its faults."""

    make_world: staticmethod

    grants = Bundle("grants")

    def __init__(self):
        super().__init__()
        self.world = self.make_world()
        self.store = self.world.store
        self.records = {}
        self.released = {}

    def teardown(self):
        self.store.close()

    @rule(key=keys, work=works, owner=owners, delivery=deliveries, target=grants)
    def ask(self, key, work, owner, delivery):
        return self.acquire(Claim(key, owner, TTL, record=work, delivery=delivery))

    @rule(earlier=grants, target=grants)
    def ask_again(self, earlier):
        """A late copy of the question."""
        return self.acquire(earlier.claim)

    def acquire(self, claim):
        holder = self.store.holder(claim.key)
        mine = holder is not None and holder.owner == claim.owner
        answer = self.store.acquire(claim)
        known = self.records.get(claim.record)
        if not mine and not isinstance(answer, DeliveryEnded | Ended):
            assert isinstance(answer, Done) == bool(known and known.done)
            elsewhere = bool(known and not known.done and known.key != claim.key)
            assert isinstance(answer, ClaimedElsewhere) == elsewhere
            assert isinstance(answer, Done | ClaimedElsewhere) or isinstance(answer, Held) == bool(holder)
        if isinstance(answer, Done):
            assert answer.record.value == known.value
        if isinstance(answer, Granted):
            if claim.record and not (known and known.done):
                # Taken over from a run that died, with a greater token, if there was one under this key.
                assert known is None or known.key != claim.key or known.token <= answer.token
                self.records[claim.record] = Known(claim.key, claim.owner, answer.token)
            return Grant(claim, answer.token)
        return Grant(claim, 1)

    @rule(grant=grants, ending=endings)
    def release(self, grant, ending):
        claim, token = grant
        again = self.released.get(claim.key) == claim.owner
        answer = self.store.release(claim, token, ending)
        if not isinstance(answer, Gone):
            self.released[claim.key] = claim.owner
        if not claim.record:
            return
        known = self.records.get(claim.record)
        if known and known.done:
            return
        ours = known is not None and known.owner == claim.owner
        rightful = not isinstance(answer, Gone) and not again
        if ending and ending.how == "returned" and (ours or rightful or (again and known is None)):
            mark = known if ours else Known(claim.key, claim.owner, token)
            self.records[claim.record] = mark._replace(done=True, value=ending.result)
        elif ours:
            del self.records[claim.record]

    @rule(key=keys)
    def force_release(self, key):
        self.store.force_release(key)

    @rule(key=keys)
    def the_lease_expires(self, key):
        self.world.expire(key)

    @rule(grant=grants, only_a_claim=st.booleans())
    def delete(self, grant, only_a_claim):
        work, owner = grant.claim.record or WORK[0], grant.claim.owner if only_a_claim else None
        answer = self.store.delete_record(work, owner)
        known = self.records.get(work)
        assert (answer is None) == (known is None)
        if known and (owner is None or (known.owner == owner and not known.done)):
            del self.records[work]

    @rule()
    def everything_is_lost(self):
        self.world.flush()
        self.records.clear()
        self.released.clear()

    @invariant()
    def the_records_are_those_of_the_model(self):
        self.world.tick()
        for work in WORK:
            found, known = self.store.record(work), self.records.get(work)
            seen = found and Known(
                found.lock_key, found.owner, found.token, found.done is not None, found.value
            )
            assert seen == known

    @rule()
    def all_records_are_listed(self):
        """A rule, not an invariant: each list asks 64 times."""
        assert {record.key for record in self.store.records()} == set(self.records)


class RedisWorld:
    """A real server and its faults."""

    def __init__(self, server):
        self.store = from_url(server.url)
        self.client = redis.Redis.from_url(server.url)
        self.client.flushall()

    def tick(self):
        """Its clock moves by itself."""

    def expire(self, key):
        self.client.pexpire(self.store._names.lease(key.encode()), 0)

    def flush(self):
        self.client.flushall()


class MemoryWorld:
    """The memory store and the same faults."""

    def __init__(self):
        self.clock = FakeClock()
        self.store = MemoryStore("record machine", clock=self.clock)
        self.store.flush()

    def tick(self):
        self.clock.advance(0.001)

    def expire(self, key):
        self.store._space.leases.pop(key, None)

    def flush(self):
        self.store.flush()


@pytest.fixture(scope="module")
def server():
    try:
        with embedded_server() as running:
            yield running
    except NoServerError as error:
        pytest.skip(str(error))


def test_the_redis_scripts_keep_the_records_of_the_model(server):
    class Machine(RecordMachine):
        make_world = staticmethod(lambda: RedisWorld(server))

    run_state_machine_as_test(Machine, settings=RUN)


def test_the_memory_store_keeps_the_records_of_the_model():
    class Machine(RecordMachine):
        make_world = staticmethod(MemoryWorld)

    run_state_machine_as_test(Machine, settings=RUN)
