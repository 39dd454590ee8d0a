"""The lease store on one Redis or Valkey server."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from celery_fence.errors import ConfigError
from celery_fence.locking.store import (
    AcquireAnswer,
    Claim,
    Ended,
    ForceReleaseAnswer,
    ForceReleased,
    Gone,
    Granted,
    Held,
    Holder,
    ReleaseAnswer,
    Released,
    Renewal,
    RenewAnswer,
)
from celery_fence.stores.redis.answers import facts_text, holder_of, renewal_of
from celery_fence.stores.redis.client import Client
from celery_fence.stores.redis.names import Names, to_bytes, to_text
from celery_fence.stores.redis.scripts import load_scripts
from celery_fence.stores.redis.urls import parse_address

BATCH = 100
"""How many leases one question is about at most: some 30 kB, about a millisecond of the server's time."""

Item = TypeVar("Item")


class RedisStore:
    """
    The `Store` on the Redis or Valkey at *url*: one script, one round trip per question.

    Connects at the first question. *timeout* in seconds is the longest wait for one
    reply, *counter_retention* in seconds how long an idle key's counter is kept.
    Raises `ConfigError` for a URL that can't be used.
    """

    single_process = False

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "fence",
        timeout: float = 5.0,
        counter_retention: float = 604800.0,
        client: Client | None = None,
    ) -> None:
        self._url = url
        self._prefix = prefix
        self._timeout = timeout
        self._retention = counter_retention
        self._retention_ms = _milliseconds(counter_retention)
        self._address = parse_address(url)
        self._names = Names(prefix)
        self._scripts = load_scripts()
        self._client = client or Client(self._address, timeout=timeout)

    def __repr__(self) -> str:
        return f"<RedisStore {self.description}>"

    @property
    def description(self) -> str:
        """The store's URL without user, password and options."""
        return self._address.description

    def acquire(self, claim: Claim) -> AcquireAnswer:
        """As `Store.acquire`; one round trip."""
        key = to_bytes(claim.key)
        answer = self._client.ask(
            self._scripts.acquire,
            self._names.of(key),
            (
                to_bytes(claim.owner),
                _milliseconds(claim.ttl),
                self._retention_ms,
                key,
                facts_text(claim.facts),
            ),
        )
        if answer[0] == b"granted":
            return Granted(token=int(answer[1]), since=int(answer[2]) / 1_000_000)
        holder = holder_of(claim.key, answer)
        return Held(holder) if holder else Ended()

    def renew(self, renewals: Sequence[Renewal]) -> list[RenewAnswer]:
        """As `Store.renew`; one round trip for each 100 leases."""
        answers: list[RenewAnswer] = []
        for batch in _batches(renewals):
            answers.extend(self._renew(batch))
        return answers

    def release(self, claim: Claim, token: int) -> ReleaseAnswer:
        """As `Store.release`; one round trip. *token* 0 stands for a grant whose token isn't known."""
        key = to_bytes(claim.key)
        answer = self._client.ask(
            self._scripts.release,
            self._names.of(key),
            (to_bytes(claim.owner), token, self._retention_ms, key),
        )
        if answer[0] == b"released":
            return Released()
        return Gone(answer[1].decode(), holder_of(claim.key, answer))

    def force_release(self, key: str, owner: str | None = None) -> ForceReleaseAnswer:
        """As `Store.force_release`; one round trip."""
        name = to_bytes(key)
        answer = self._client.ask(
            self._scripts.force_release,
            self._names.of(name),
            (int(owner is not None), to_bytes(owner or ""), self._retention_ms, name),
        )
        holder = holder_of(key, answer)
        return Held(holder) if holder and answer[0] == b"held" else ForceReleased(holder)

    def holder(self, key: str) -> Holder | None:
        """As `Store.holder`; one round trip."""
        return self._holders([key])[0]

    def leases(self) -> Iterator[Holder]:
        """As `Store.leases`; one round trip for each of the 64 buckets and for each 100 leases in one."""
        for index in self._names.indexes():
            keys = [to_text(key) for key in self._client.ask(self._scripts.list, [index], ())]
            for batch in _batches(keys):
                yield from filter(None, self._holders(batch))

    def for_heartbeat(self) -> RedisStore:
        """As `Store.for_heartbeat`: a client with one connection, opened by its first renewal."""
        client = Client(self._address, timeout=self._timeout, max_connections=1)
        return RedisStore(
            self._url,
            prefix=self._prefix,
            timeout=self._timeout,
            counter_retention=self._retention,
            client=client,
        )

    def close(self) -> None:
        """As `Store.close`."""
        self._client.close()

    def _renew(self, batch: Sequence[Renewal]) -> list[RenewAnswer]:
        keys: list[bytes] = []
        arguments: list[bytes | str | int] = [self._retention_ms]
        for renewal in batch:
            claim = renewal.claim
            key = to_bytes(claim.key)
            keys += self._names.of(key)
            since_us = round(renewal.since * 1_000_000)
            arguments += (to_bytes(claim.owner), renewal.token, since_us, _milliseconds(claim.ttl))
            arguments += (key, facts_text(claim.facts))
        answers = self._client.ask(self._scripts.renew, keys, arguments)
        return [renewal_of(each.claim.key, answer) for each, answer in zip(batch, answers, strict=True)]

    def _holders(self, keys: Sequence[str]) -> list[Holder | None]:
        names = [self._names.lease(to_bytes(key)) for key in keys]
        answers = self._client.ask(self._scripts.holders, names, ())
        return [holder_of(key, answer) for key, answer in zip(keys, answers, strict=True)]


def _batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def _milliseconds(seconds: float) -> int:
    """*seconds* in whole milliseconds, at least 1: Redis takes 0 for "delete"."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"the ttl of a lease must be a number of seconds above 0, not {seconds!r}")
    return max(1, round(seconds * 1000))
