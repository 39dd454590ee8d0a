"""High-water marks in Redis or Valkey."""

from __future__ import annotations

from typing import Any

from celery_fence.fencing.gate.mark import Mark
from celery_fence.fencing.high_water.store import RETENTION
from celery_fence.fencing.scripts import load_script, milliseconds, sync_client, to_bytes, to_text


class RedisMarks:
    """
    Marks in the Redis of *client*, a `redis.Redis` or `redis.RedisCluster`; shared by all who use it.

    One round trip a mark. Each lives under ``<prefix>:mark:<scope>`` for *retention*
    seconds after its last use (None: for good). What *client* raises comes through:
    the mark isn't known then. The server must not evict (`maxmemory-policy noeviction`).
    """

    def __init__(self, client: Any, *, prefix: str = "fence", retention: float | None = RETENTION) -> None:
        self._client = sync_client(client)
        self._prefix = to_bytes(f"{prefix}:mark:")
        self._retention_ms = milliseconds("retention", retention)
        self._raise = load_script("high_water/mark", "high_water/raise")

    def raise_mark(self, scope: str, mark: Mark) -> Mark:
        """As `HighWaterStore.raise_mark`."""
        arguments = (str(mark.token), to_bytes(mark.owner or ""), self._retention_ms)
        token, owner = self._raise.ask(self._client, [self._prefix + to_bytes(scope)], arguments)
        return Mark(int(token), to_text(owner) or None)
