"""What the lease server has at a moment, by kind of key."""

from __future__ import annotations

from typing import Any

import redis

KINDS = {"lease": "leases", "token": "counters", "done": "markers", "expiries": "indexes"}


def count_keys(client: redis.Redis) -> dict[str, Any]:
    """How many keys of each kind there are, which have no expiry, and the longest expiry in seconds."""
    counts: dict[str, Any] = dict.fromkeys([*KINDS.values(), "others"], 0)
    names = list(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.pttl(name)
        left = dict(zip(names, pipe.execute(), strict=True))
    for name in names:
        counts[_kind(name)] += 1
    endless = [name for name, ms in left.items() if ms == -1]
    held = [name for name in names if _kind(name) == "leases"]
    return {
        **counts,
        "without_expiry": endless[:20],
        "held": held[:20],
        "longest_expiry": max(left.values(), default=0) / 1000,
    }


def leases_of(client: redis.Redis) -> list[dict[str, Any]]:
    """Every lease with its key and owner, and its TTL, its lost delay and the time it has left, in seconds."""
    found = []
    for name in client.scan_iter("fence:*:lease:*", count=1000):
        with client.pipeline() as pipe:
            pipe.hmget(name, "owner", "ttl", "lost_delay").pttl(name)
            (owner, ttl, lost_delay), left = pipe.execute()
        if owner:
            found.append(
                {
                    "key": name.split(":", 3)[3],
                    "owner": owner,
                    "ttl": float(ttl) / 1000,
                    "lost_delay": float(lost_delay or 0) / 1000,
                    "left": left / 1000,
                }
            )
    return found


def _kind(name: str) -> str:
    parts = name.split(":", 3)
    return KINDS.get(parts[2], "others") if len(parts) > 2 and parts[0] == "fence" else "others"
