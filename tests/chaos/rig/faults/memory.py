"""F9: a lease server whose memory is full."""

from __future__ import annotations

import redis

from rig.faults.fault import Fault

JUNK = "junk"
ROOM = 200_000
"""Bytes left when the memory is full, so that the server still answers."""


class FullMemory(Fault):
    """Full with other people's keys: ``allkeys-lru`` evicts ours, ``noeviction`` refuses our writes."""

    def strike(self) -> bool:
        """Fill the memory."""
        client = self.world.client
        self.loses_data = self.plan.how == "allkeys-lru"
        client.config_set("maxmemory-policy", self.plan.how)
        self._evicted = _evicted(client)
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", used + ROOM if self.loses_data else used)
        if self.loses_data:
            self._fill(client)
        return True

    def heal(self) -> None:
        """Make room again."""
        client = self.world.client
        self.target = f"{_evicted(client) - self._evicted} evicted"
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        names = list(client.scan_iter(f"{JUNK}:*", count=1000))
        if names:
            client.delete(*names)

    def _fill(self, client: redis.Redis) -> None:
        with client.pipeline(transaction=False) as pipe:
            for number in range(600):
                pipe.set(f"{JUNK}:{number}", "x" * 2000)
            pipe.execute(raise_on_error=False)


def _evicted(client: redis.Redis) -> int:
    return int(client.info("stats")["evicted_keys"])
