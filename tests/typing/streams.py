"""What a type checker says of streams, messages and HTTP; never run, only checked."""

from __future__ import annotations

from typing import Any, assert_type

import redis
from sqlalchemy import Engine

from celery_fence import Lease, current_lease
from celery_fence.fencing.http import STAMP, AsgiTokenGate, WsgiTokenGate
from celery_fence.fencing.sqlalchemy import SqlMarks
from celery_fence.fencing.streams import (
    Appended,
    FencedStream,
    HighWaterStore,
    Mark,
    MemoryMarks,
    RedisMarks,
    Stamp,
    TokenGate,
)


def producer(client: redis.Redis, lease: Lease) -> None:
    stream = FencedStream(client, "payouts", retention=None, maxlen=10_000)
    assert_type(stream.append("payout:7", {"cents": 7, "raw": b"", "rate": 0.5, "type": "paid"}), Appended)
    assert_type(stream.append("payout:7", {}, lease, key="tenant:1", event_id="e1", mode="shadow").entry, str)
    assert_type(stream.append("payout:7", {}, Stamp("payout:7", 5)).repeated, bool)
    assert_type(stream.mark("payout:7"), Mark | None)
    stream.forget("payout:7")
    stream.append("payout:7", {}, mode="shadw")  # type: ignore[arg-type]


def messages(lease: Lease, headers: dict[str, Any]) -> None:
    assert_type(lease.message_headers(), dict[str, Any])
    assert_type(Stamp.of(lease).http_headers(), dict[str, str])
    assert_type(Stamp.of(), Stamp)
    assert_type(Stamp.read(headers), Stamp | None)
    current = current_lease()
    if current is not None:
        assert_type(current.message_headers(), dict[str, Any])


def consumer(client: redis.Redis, engine: Engine, stamp: Stamp) -> None:
    stores: list[HighWaterStore] = [MemoryMarks(), RedisMarks(client), SqlMarks(engine), Own()]
    for marks in stores:
        gate = TokenGate(marks, mode="enforce", emit=lambda event: print(event.key))
        assert_type(gate.admits(stamp, what="a message"), bool)
        gate.check(stamp)


class Own:
    def raise_mark(self, scope: str, mark: Mark) -> Mark:
        return mark


def service(gate: TokenGate, wsgi: Any, asgi: Any, environ: dict[str, Any]) -> None:
    WsgiTokenGate(wsgi, gate, required=True, scope_of=lambda method, path: None)
    AsgiTokenGate(asgi, gate)
    print(environ[STAMP])
