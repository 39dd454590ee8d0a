"""The Redis scripts in the place of the model: keys written by hand, the scripts asked, keys read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import redis

from celery_fence.stores.redis.store import RedisStore
from tests.chaos.model.facts import Counter, Holder, Key, Lease, Marker
from tests.chaos.model.translation import TICK, Scale, Seen, ask, in_ranks
from tests.chaos.model.vectors import Vector

TICK_MS = round(TICK * 1000)
DAY_MS = 24 * 3600 * 1000
TTL = 3
FIELDS = {"layout", "owner", "token", "since", "ttl", "facts", "delivery", "message", "lost_delay"}


class RedisKeeper:
    """
    One server. Each vector has a key of its own; many are written before, and read after, in one go.

    What the layout doesn't know, a key or a field of a lease, is an error, and so is a
    key that never expires.
    """

    def __init__(self, store: RedisStore, client: redis.Redis) -> None:
        self._store = store
        self._client = client

    def run(self, vectors: Sequence[Vector]) -> list[Seen]:
        """What becomes of each vector."""
        self._client.flushall()
        named = [(f"key-{number}", vector) for number, vector in enumerate(vectors)]
        now_us = self._now_us()
        scales = [Scale(vector, now_us) for vector in vectors]
        self._put_all(named, scales)
        answers = [
            ask(self._store, name, vector.question, scale.real(vector.question.token))
            for (name, vector), scale in zip(named, scales, strict=True)
        ]
        ranks = [partial(scale.rank, until_us=self._now_us()) for scale in scales]
        asked = {vector.question.claim.delivery for vector in vectors} - {""}
        kept = [self._read(name, sorted(asked), rank) for (name, _), rank in zip(named, ranks, strict=True)]
        self._check_nothing_else_is_kept(named, asked)
        listed = {holder.key for holder in self._store.leases()}
        return [
            Seen(in_ranks(answer, rank), key, name in listed)
            for (name, _), answer, rank, key in zip(named, answers, ranks, kept, strict=True)
        ]

    def _now_us(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1_000_000 + int(micros)

    # --- writing -----------------------------------------------------------------------

    def _put_all(self, named: Sequence[tuple[str, Vector]], scales: Sequence[Scale]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for (name, vector), scale in zip(named, scales, strict=True):
            key = vector.before
            if key.lease:
                self._put_lease(pipe, name, key.lease, scale)
            if key.counter != Counter():
                self._put_counter(pipe, name, key.counter, scale)
            for delivery, marker in key.markers:
                self._put_marker(pipe, self._done(name, delivery), marker, scale)
        pipe.execute()

    def _put_lease(self, pipe: Any, name: str, lease: Lease, scale: Scale) -> None:
        fields = {
            "layout": 1,
            "owner": lease.owner,
            "token": scale.real(lease.token),
            "since": 1_000_000,
            "ttl": TTL * TICK_MS,
            "facts": "{}",
            "delivery": lease.delivery,
            "message": lease.message,
            "lost_delay": lease.lost_delay * TICK_MS,
        }
        at, _, index = self._names(name)
        pipe.hset(at, mapping={field: value for field, value in fields.items() if value})
        pipe.pexpire(at, lease.left * TICK_MS)
        pipe.zadd(index, {name: scale.now_us // 1000 + lease.left * TICK_MS})
        pipe.pexpire(index, DAY_MS)

    def _put_counter(self, pipe: Any, name: str, counter: Counter, scale: Scale) -> None:
        fields = {"token": scale.real(counter.token)}
        if counter.released:
            fields |= {"released": counter.released, "released_at": scale.now_us}
        if counter.forced:
            fields |= {"forced": scale.real(counter.forced)}
        pipe.hset(self._names(name)[1], mapping=fields)
        pipe.pexpire(self._names(name)[1], DAY_MS)

    def _put_marker(self, pipe: Any, at: bytes, marker: Marker, scale: Scale) -> None:
        fields = {"how": marker.how, "at": scale.now_us, "by": marker.by}
        if marker.noted:
            fields |= {"noted": 1}
        if marker.told:
            told = marker.told
            holder = [
                "held",
                "",
                told.owner,
                str(scale.real(told.token)),
                TICK_MS,
                "1",
                "0",
                "{}",
                int(told.closed),
            ]
            fields |= {"holder": json.dumps(holder)}
        pipe.hset(at, mapping=fields)
        pipe.pexpire(at, DAY_MS)

    # --- reading ------------------------------------------------------------------------

    def _read(self, name: str, deliveries: Sequence[str], rank: Any) -> Key:
        at, counter, _ = self._names(name)
        markers = [(delivery, self._hash(self._done(name, delivery))) for delivery in deliveries]
        return Key(
            self._lease(self._hash(at), rank),
            self._counter(self._hash(counter), rank),
            tuple((delivery, self._marker(found, rank)) for delivery, found in markers if found),
        )

    def _check_nothing_else_is_kept(self, named: Sequence[tuple[str, Vector]], deliveries: set[str]) -> None:
        known = {part for name, _ in named for part in self._names(name)}
        known |= {self._done(name, delivery) for name, _ in named for delivery in deliveries}
        strange = set(self._client.keys()) - known
        if strange:
            raise AssertionError(f"keys that the layout doesn't know: {strange}")

    def _hash(self, at: bytes) -> dict[str, str]:
        pipe = self._client.pipeline(transaction=False)
        found, left = pipe.hgetall(at).pttl(at).execute()
        if left == -1:
            raise AssertionError(f"{at!r} never expires")
        return {field.decode(): value.decode() for field, value in found.items()} | (
            {"left": left} if found else {}
        )

    def _lease(self, found: dict[str, Any], rank: Any) -> Lease | None:
        if not found:
            return None
        if not found.keys() <= FIELDS | {"left"}:
            raise AssertionError(f"unknown fields in a lease: {found}")
        return Lease(
            owner=found["owner"],
            token=rank(int(found["token"])),
            left=_ticks(found["left"]),
            lost_delay=_ticks(int(found.get("lost_delay", 0))),
            delivery=found.get("delivery", ""),
            message=found.get("message", ""),
        )

    def _counter(self, found: dict[str, Any], rank: Any) -> Counter:
        token, forced = int(found.get("token", 0)), int(found.get("forced", 0))
        return Counter(rank(token), found.get("released", ""), rank(forced))

    def _marker(self, found: dict[str, Any], rank: Any) -> Marker:
        told = None
        if "holder" in found:
            _, _, owner, token, *_, closed = json.loads(found["holder"])
            told = Holder(owner, rank(int(token)), bool(closed))
        return Marker(found["how"], found["by"], "noted" in found, None, told)

    def _names(self, name: str) -> tuple[bytes, bytes, bytes]:
        return self._store._names.of(name.encode())

    def _done(self, name: str, delivery: str) -> bytes:
        return self._store._names.done(name.encode(), delivery.encode())


def _ticks(left_ms: int) -> int:
    return round(left_ms / TICK_MS)
