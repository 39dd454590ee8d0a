"""
A replica takes over while the old primary lives on: what holder, waiter and result see.

The far worker is led to the new primary at once; the near one still talks to the old, as a client
does that hasn't heard of it, and follows later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from bench.bad_day import PATIENCE, TTL, BadDay
from bench.waiting import wait_until
from redis import Redis

from celery_fence import LeaseLost
from celery_fence.testing.proxy import Proxy
from celery_fence.testing.servers import EmbeddedServer, embedded_server

REPLICAS = ("lags", "is in step")


@contextmanager
def replica_of(primary: EmbeddedServer) -> Iterator[tuple[EmbeddedServer, Proxy]]:
    """A replica, and the way by which it hears of its primary."""
    with (
        embedded_server() as server,
        Proxy(primary.host, primary.port) as link,
        Redis.from_url(server.url) as admin,
    ):
        admin.replicaof(link.host, link.port)
        wait_until(
            lambda: admin.info("replication")["master_link_status"] == "up", what="the replica in step"
        )
        yield server, link


def move(proxy: Proxy, server: EmbeddedServer) -> None:
    """Lead who comes by *proxy* to *server*; who is connected must connect anew."""
    proxy.target = (server.host, server.port)
    proxy.reset()


class Failover:
    """
    One failover, with runs in each phase of their leases.

    *rival* asks the new primary for the key of *holder*, who is still with the old one; nobody asks for
    that of *loner*. *finisher* ends and *asker* begins once the new one is there.
    """

    def __init__(self, world: BadDay, *, lags: bool) -> None:
        self.world, self.bench = world, world.bench
        with replica_of(world.server) as (replica, link), Redis.from_url(replica.url) as admin:
            if lags:
                link.hold()
            self._take_leases()
            if not lags:
                wait_until(
                    lambda: len(list(admin.scan_iter("*:lease:*"))) == 3, what="three leases replicated"
                )
            admin.replicaof("NO", "ONE")
            self.renewed_before = self.renewals(self.kept)
            move(world.far, replica)
            self._meet(lags=lags)
            move(world.near, replica)
            self._come_to_an_end(lags=lags)
        move(world.far, world.server)
        move(world.near, world.server)

    def _take_leases(self) -> None:
        self.contended, self.kept, self.ends = (
            self.bench.key(name) for name in ("contended", "kept", "ends")
        )
        self.asks = self.bench.key("asks")
        self.holder, self._holders_gate = self.world.hold("near", self.contended, value="held")
        self.loner, self._loners_gate = self.world.hold("far", self.kept, value="alone")
        self.finisher, finishers_gate = self.world.hold("far", self.ends, value="finished")
        self._end = finishers_gate.open

    def _meet(self, *, lags: bool) -> None:
        """The far worker is with the new primary, the near one with the old."""
        gate = self.bench.gate()
        self.rival = self.world.send("far", "patient", self.contended, value="rival", trusts=gate.path.name)
        self._rivals_gate = gate
        self._end()
        self.asker = self.world.send("far", "skips", self.asks, value="asked")
        self.next = self.world.send("far", "patient", self.ends, value="next")
        if lags:
            wait_until(lambda: len(self.bench.ledger.starts(self.contended)) == 2, what="two have the key")
        else:
            wait_until(lambda: self.bench.misses(self.contended), what="the rival missed")
        self.met = not self.bench.ledger.ends(self.contended)
        """The holder's body ran all the while."""

    def _come_to_an_end(self, *, lags: bool) -> None:
        key = f"job:{self.contended}"
        if lags:
            wait_until(
                lambda: self.bench.ledger.facts("lease_lost", fence_key=key), what="the holder was told"
            )
        else:
            before = self.renewals(self.contended)
            wait_until(lambda: self.renewals(self.contended) > before, what="the holder is renewed")
        wait_until(lambda: self.renewals(self.kept) > self.renewed_before, what="the loner is renewed")
        for gate in (self._holders_gate, self._rivals_gate, self._loners_gate):
            gate.open()
        for result in (self.holder, self.rival, self.loner, self.finisher, self.asker, self.next):
            self.bench.outcome(result, timeout=PATIENCE)

    def renewals(self, key: str) -> int:
        """How often the lease on the bench key *key* has been renewed."""
        return len(self.bench.ledger.facts("lease_renewed", fence_key=f"job:{key}"))

    def tokens_grow(self, key: str) -> bool:
        """Whether each run of *key* had a greater token than the one before."""
        tokens = self.bench.ledger.tokens(key)
        return tokens == sorted(set(tokens))


@pytest.fixture(scope="module")
def failover(make_bench) -> Iterator[Callable[[str], Failover]]:
    """Let a replica of that kind take over, once; the tests share what was seen."""
    seen: dict[str, Failover] = {}
    with ExitStack() as stack:
        world = BadDay(make_bench(fence_ttl=TTL), stack)

        def happens(kind: str) -> Failover:
            if kind not in seen:
                seen[kind] = Failover(world, lags=kind == "lags")
            return seen[kind]

        yield happens


@pytest.fixture(params=REPLICAS)
def replica(request) -> str:
    return request.param


def test_at_acquire_the_new_primary_grants_with_greater_tokens(replica, failover):
    seen = failover(replica)

    assert seen.asker.get() == "asked"
    assert len(seen.bench.ledger.starts(seen.asks)) == 1
    assert seen.rival.get() == "rival"
    assert len(seen.bench.ledger.starts(seen.contended)) == 2
    assert seen.tokens_grow(seen.contended)


def test_while_held_a_lease_is_kept_unless_the_replica_did_not_know_it_and_let_another_in(replica, failover):
    seen = failover(replica)

    assert seen.met
    assert seen.loner.get() == "alone"
    assert len(seen.bench.ledger.starts(seen.kept)) == 1
    put_back = f"The lease on 'job:{seen.kept}' had vanished" in seen.world.far_worker.log
    assert put_back == (replica == "lags")
    if replica == "lags":
        with pytest.raises(LeaseLost, match=r"another owner|newer token"):
            seen.holder.get()
    else:
        assert seen.holder.get() == "held"
        assert seen.bench.ledger.overlaps(seen.contended) == []


def test_at_release_a_finished_task_stays_finished_and_the_next_token_is_greater(replica, failover):
    seen = failover(replica)

    assert seen.finisher.get() == "finished"
    assert seen.next.get() == "next"
    assert len(seen.bench.ledger.starts(seen.ends)) == 2
    assert seen.bench.ledger.overlaps(seen.ends) == []
    assert seen.tokens_grow(seen.ends)
