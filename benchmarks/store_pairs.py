# ruff: noqa: D103, INP001, T201 - a script that prints, whose names say it
"""
How many acquire+release pairs a second the Redis store makes, against a floor in the same run.

The floor is the least that a lock without a token can do with redis-py's client:
``SET NX PX`` and an ``EVALSHA`` that compares and deletes. The two take turns, so that
a busy machine slows both. Printed are the median and the best rate, and the median of the
ratios to the floor of the same round.

    python benchmarks/store_pairs.py [--rounds 50] [--seconds 0.1]
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Callable

import redis

from celery_fence.locking.store import Claim, Facts, Granted, Renewal, Store
from celery_fence.stores import from_url
from celery_fence.testing.servers import embedded_server

COMPARE_AND_DELETE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

FACTS = Facts("billing.sync_tenant", str(uuid.uuid4()), "delivery", 0, "worker-1", 4711)


def main() -> None:
    parser = argparse.ArgumentParser(description="Acquire+release pairs a second, against a floor.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each turn")
    options = parser.parse_args()
    with embedded_server() as server:
        contestants = {
            "floor": floor(server.url),
            "redis store": store(server.url),
            "memory store": store("memory://"),
        }
        rates = take_turns(contestants, options.rounds, options.seconds)
        report(rates)
        print(f"one renewal call for 100 leases takes {renewal_time(server.url) * 1000:.2f} ms (median)")


def floor(url: str) -> Callable[[], None]:
    client = redis.Redis.from_url(url)
    digest = client.script_load(COMPARE_AND_DELETE)

    def pair() -> None:
        owner = uuid.uuid4().hex
        client.set("floor", owner, nx=True, px=60_000)
        client.evalsha(digest, 1, "floor", owner)

    return pair


def store(url: str) -> Callable[[], None]:
    leases = from_url(url)

    def pair() -> None:
        claim = Claim("tenant:42:sync", uuid.uuid4().hex, 60.0, FACTS)
        leases.release(claim, granted(leases, claim).token)

    return pair


def granted(leases: Store, claim: Claim) -> Granted:
    answer = leases.acquire(claim)
    if not isinstance(answer, Granted):
        raise TypeError(answer)
    return answer


def take_turns(
    contestants: dict[str, Callable[[], None]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, pair in contestants.items():
            rates[name].append(rate(pair, seconds))
    return rates


def rate(pair: Callable[[], None], seconds: float) -> float:
    started = time.perf_counter()
    pairs, elapsed = 0, 0.0
    while elapsed < seconds:
        pair()
        pairs += 1
        elapsed = time.perf_counter() - started
    return pairs / elapsed


def report(rates: dict[str, list[float]]) -> None:
    for name, own in rates.items():
        ratios = [mine / floor_rate for mine, floor_rate in zip(own, rates["floor"], strict=True)]
        print(
            f"{name:14} {statistics.median(own):9.0f} pairs/s, at best {max(own):6.0f}; "
            f"{statistics.median(ratios):.2f} of the floor, at best {max(own) / max(rates['floor']):.2f}"
        )


def renewal_time(url: str) -> float:
    leases = from_url(url)
    claims = [Claim(f"renewal:{number}", "owner", 60.0, FACTS) for number in range(100)]
    grants = [granted(leases, claim) for claim in claims]
    wishes = [Renewal(c, grant.token, grant.since) for c, grant in zip(claims, grants, strict=True)]
    times = []
    for _ in range(50):
        started = time.perf_counter()
        leases.renew(wishes)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    main()
