# ruff: noqa: D103, INP001, T201 - a script that prints, whose names say it
"""
How fast a run that lost its lease is stopped: pool by kind of body, measured with real workers.

Each body would take so many seconds; half a second in, its lease is released by force. Printed is
the table of docs/stopping.md: how long after the loss was noticed the body ended, and how.

    python benchmarks/stopping.py [--seconds 4] [--pools prefork,solo,threads,gevent,eventlet]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "integration"))

from bench.pools import add_tasks
from bench.waiting import wait_until
from bench.world import Bench

POOLS = "prefork,solo,threads,gevent,eventlet"
KINDS = {
    "sleep": "`time.sleep`",
    "socket": "socket read",
    "blpop": "Redis BLPOP",
    "compute": "Python loop",
    "blocks": "C code, GIL free",
    "grips": "C code, GIL held",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a run that lost its lease is stopped.")
    parser.add_argument("--seconds", type=float, default=4.0, help="each body would take")
    parser.add_argument("--pools", default=POOLS)
    options = parser.parse_args()
    print("| pool | " + " | ".join(KINDS.values()) + " |")
    print("|---" * (len(KINDS) + 1) + "|")
    for pool in options.pools.split(","):
        print(f"| {pool} | " + " | ".join(measure(pool, options.seconds)) + " |", flush=True)


def measure(pool: str, seconds: float) -> list[str]:
    with Bench(Path(tempfile.mkdtemp()), fence_ttl=1.5) as bench:
        add_tasks(bench.app)
        bench.worker(pool=pool, concurrency=1 if pool == "solo" else 3, app="bench.pools")
        return [cell(bench, kind, seconds) for kind in KINDS]


def cell(bench: Bench, kind: str, seconds: float) -> str:
    key = bench.key()
    result = bench.send("lost_raise", key, {kind: seconds})
    began = wait_until(lambda: bench.ledger.facts("holding", key=key))[0]["at"]
    time.sleep(max(began + 0.5 - time.monotonic(), 0.0))
    bench.vacate(key)
    end = wait_until(lambda: bench.ledger.ends(key))[0]
    state = bench.outcome(result)
    return words(bench.ledger.facts("lease_lost", fence_key=f"job:{key}"), end, began + seconds, state)


def words(losses: list[dict[str, Any]], end: dict[str, Any], natural_end: float, state: str) -> str:
    if end["outcome"] != "LeaseLost":
        return f"ran on to its end, {state}"
    if end["at"] > natural_end - 0.1:
        return f"stopped when it returned, {state}"
    return f"stopped after {max(end['at'] - losses[0]['at'], 0.0) * 1000:.0f} ms, {state}"


if __name__ == "__main__":
    main()
