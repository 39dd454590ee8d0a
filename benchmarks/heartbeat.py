# ruff: noqa: D103, INP001, T201 - a script that prints, whose names say it
"""
What it costs to keep many leases in one process: one thread, one connection.

Takes the leases, lets the heartbeat beat for a while and prints, per beat (every lease renewed
once): the calls, the time that the server spent in them by its own `INFO commandstats`, the CPU
time of this process, and how late the latest renewal was.

    python benchmarks/heartbeat.py [--leases 5000] [--ttl 30] [--beats 4]
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from typing import Any

import redis

from celery_fence.locking.events import Renewed
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.lease import Lease
from celery_fence.locking.locker import Locker, Terms
from celery_fence.locking.store import Claim, Facts
from celery_fence.stores import from_url
from celery_fence.testing.servers import embedded_server

FACTS = Facts("billing.sync_tenant", str(uuid.uuid4()), "delivery", 0, "worker-1", 4711)


def main() -> None:
    parser = argparse.ArgumentParser(description="The heartbeat with many leases.")
    parser.add_argument("--leases", type=int, default=5000)
    parser.add_argument("--ttl", type=float, default=30.0, help="seconds")
    parser.add_argument("--beats", type=int, default=4)
    options = parser.parse_args()
    with embedded_server() as server, redis.Redis.from_url(server.url, decode_responses=True) as onlooker:
        measure(server.url, onlooker, options)


def measure(url: str, onlooker: redis.Redis, options: argparse.Namespace) -> None:
    lags: list[float] = []
    lost: list[Lease] = []

    def observe(event: Any) -> None:
        if isinstance(event, Renewed):
            lags.append(event.lag)

    store, heartbeat = from_url(url), Heartbeat()
    locker = Locker(store, store.for_heartbeat(), observe, heartbeat=heartbeat)
    began = time.monotonic()
    leases = [take(locker, number, options.ttl, lost) for number in range(options.leases)]
    print(f"{len(leases)} leases taken in {time.monotonic() - began:.1f} s, TTL {options.ttl:g} s")
    lags.clear()
    cost = Cost(onlooker)
    wait_for(lags, options.beats * options.leases)
    cost.print(lags, len(lags) / options.leases)
    print(f"leases lost              {len(lost)}")
    for lease in leases:
        heartbeat.forget(lease)
    locker.close()


def take(locker: Locker, number: int, ttl: float, lost: list[Lease]) -> Lease:
    taken: list[Lease] = []
    claim = Claim(f"tenant:{number}:sync", uuid.uuid4().hex, ttl, FACTS)
    lease = locker.acquire(claim, source=None, terms=Terms(), into=taken.append, on_lost=lost.append)
    if not isinstance(lease, Lease):
        raise SystemExit(f"{claim.key} is held: {lease}")
    return lease


class Cost:
    """What the server and this process have spent since it was made."""

    def __init__(self, onlooker: redis.Redis) -> None:
        self.onlooker = onlooker
        self.calls, self.usec = self.spent()
        self.server_cpu, self.cpu = self.of_server(), time.process_time()

    def spent(self) -> tuple[int, int]:
        """Scripts called, and microseconds in them by the server's own clock, so far."""
        stats: Any = self.onlooker.info("commandstats").get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        return stats["calls"], stats["usec"]

    def of_server(self) -> float:
        """CPU seconds of the server, which other processes on the machine don't lengthen."""
        info: Any = self.onlooker.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    def print(self, lags: list[float], beats: float) -> None:
        """Print it, divided by *beats*."""
        calls, usec = (now - then for now, then in zip(self.spent(), (self.calls, self.usec), strict=True))
        server_cpu = self.of_server() - self.server_cpu
        names = [client["name"] for client in self.onlooker.client_list()]
        print(f"calls per beat           {calls / beats:.1f}, over {beats:.2f} beats")
        print(f"server time per beat     {usec / beats / 1000:.1f} ms ({usec / calls / 1000:.2f} ms a call)")
        print(f"CPU time of the server   {server_cpu / beats * 1000:.0f} ms per beat")
        print(f"CPU time of this process {(time.process_time() - self.cpu) / beats * 1000:.0f} ms per beat")
        print(
            f"from asking to noted     {statistics.median(lags) * 1000:.1f} ms median, {max(lags) * 1000:.1f} ms most"
        )
        print(f"connections              {names.count('celery-fence')} (one of them the heartbeat's)")


def wait_for(lags: list[float], wanted: int) -> None:
    while len(lags) < wanted:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
