"""The lease store on one Redis or Valkey server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from celery_fence.locking.store import (
    AcquireAnswer,
    Claim,
    Ending,
    ForceReleaseAnswer,
    History,
    Holder,
    Note,
    RaiseAnswer,
    ReleaseAnswer,
    Renewal,
    RenewAnswer,
)
from celery_fence.stores.redis.answers import (
    acquired_of,
    facts_text,
    forced_of,
    history_of,
    holders_of,
    keys_of,
    noted_of,
    policy_of,
    raised_of,
    released_of,
    renewals_of,
)
from celery_fence.stores.redis.client import Client
from celery_fence.stores.redis.names import Names, to_bytes
from celery_fence.stores.redis.records import RedisRecords, record_retention_ms
from celery_fence.stores.redis.scripts import load_scripts
from celery_fence.stores.redis.units import batches, milliseconds
from celery_fence.stores.redis.urls import parse_address

SAFE_POLICIES = ("noeviction", "")
"""Values of maxmemory-policy that aren't warned of; empty where this user may not ask for it."""

EVICTION = (
    "The lease store {store} has maxmemory-policy {policy}: when its memory is full it throws leases away, and another "
    "run may get a key that is being worked on. Set maxmemory-policy to noeviction, or give celery-fence a server of "
    "its own (fence_url)."
)


class RedisStore(RedisRecords):
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
        self._retention_ms = milliseconds("counter_retention", counter_retention)
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
        arguments = (
            to_bytes(claim.owner),
            milliseconds("ttl", claim.ttl),
            self._retention_ms,
            to_bytes(claim.key),
            facts_text(claim.facts),
            _lost_delay_ms(claim),
            to_bytes(claim.delivery),
            to_bytes(claim.message),
            claim.if_held,
            _retention_ms(claim),
            to_bytes(claim.record),
            record_retention_ms(claim),
        )
        return self._client.ask(
            self._scripts.acquire, self._keys(claim), arguments, partial(acquired_of, claim)
        )

    def renew(self, renewals: Sequence[Renewal]) -> list[RenewAnswer]:
        """As `Store.renew`; one round trip for each 100 leases."""
        answers: list[RenewAnswer] = []
        for batch in batches(renewals):
            answers.extend(self._renew(batch))
        return answers

    def release(self, claim: Claim, token: int, ending: Ending | None = None) -> ReleaseAnswer:
        """As `Store.release`; one round trip. *token* 0 stands for a grant whose token isn't known."""
        arguments: list[bytes | str | int] = [
            to_bytes(claim.owner),
            token,
            self._retention_ms,
            to_bytes(claim.key),
            to_bytes(claim.delivery),
            ending.how if ending else "",
            _retention_ms(claim),
            to_bytes(claim.record),
            record_retention_ms(claim),
            facts_text(claim.facts) if claim.record else "",
            *_values(ending),
        ]
        return self._client.ask_counted(
            self._scripts.release, self._keys(claim), arguments, partial(released_of, claim.key)
        )

    def note(self, notes: Sequence[Note]) -> None:
        """As `Store.note`; one round trip for each 100 deliveries."""
        for batch in batches([note for note in notes if note.delivery]):
            keys = [self._names.done(to_bytes(note.key), to_bytes(note.delivery)) for note in batch]
            arguments: list[bytes | str | int] = []
            for note in batch:
                arguments += (note.how, milliseconds("retention", note.retention))
            self._client.ask(self._scripts.note, keys, arguments, partial(noted_of, len(keys)))

    def raise_counter(self, claim: Claim, token: int, seen: int) -> RaiseAnswer:
        """As `Store.raise_counter`; one round trip."""
        keys = self._names.of(to_bytes(claim.key))[:2]
        arguments = (to_bytes(claim.owner), token, seen, self._retention_ms)
        return self._client.ask(self._scripts.raise_counter, keys, arguments, partial(raised_of, claim.key))

    def force_release(self, key: str, owner: str | None = None) -> ForceReleaseAnswer:
        """As `Store.force_release`; one round trip."""
        name = to_bytes(key)
        return self._client.ask(
            self._scripts.force_release,
            self._names.of(name),
            (int(owner is not None), to_bytes(owner or ""), self._retention_ms, name),
            partial(forced_of, key),
        )

    def holder(self, key: str) -> Holder | None:
        """As `Store.holder`; one round trip."""
        return self._holders([key])[0]

    def leases(self) -> Iterator[Holder]:
        """As `Store.leases`; one round trip for each of the 64 buckets and for each 100 leases in one."""
        for index in self._names.indexes():
            keys = self._client.ask(self._scripts.list, [index], (), keys_of)
            for batch in batches(keys):
                yield from filter(None, self._holders(batch))

    def history(self, key: str) -> History:
        """As `Inspectable.history`; one round trip."""
        counter = self._names.of(to_bytes(key))[1]
        return self._client.ask(self._scripts.history, [counter], (), history_of)

    def check(self) -> list[str]:
        """As `Checkable.check`; one round trip. Warns of a server that throws keys away when its memory is full."""
        policy = self._client.ask(self._scripts.check, self._names.check(), (), policy_of)
        return [EVICTION.format(store=self.description, policy=policy)] if policy not in SAFE_POLICIES else []

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

    def _keys(self, claim: Claim) -> tuple[bytes, ...]:
        """All that a script about *claim* touches; the marker and the record only where it has one."""
        key = to_bytes(claim.key)
        names: tuple[bytes, ...] = self._names.of(key)
        if claim.delivery:
            names = (*names, self._names.done(key, to_bytes(claim.delivery)))
        return (*names, *self._names.record(to_bytes(claim.record))) if claim.record else names

    def _renew(self, batch: Sequence[Renewal]) -> list[RenewAnswer]:
        keys: list[bytes] = []
        arguments: list[bytes | str | int] = [self._retention_ms]
        for renewal in batch:
            claim = renewal.claim
            key = to_bytes(claim.key)
            keys += self._names.of(key)
            since_us = round(renewal.since * 1_000_000)
            arguments += (to_bytes(claim.owner), renewal.token, since_us, milliseconds("ttl", claim.ttl))
            arguments += (key, facts_text(claim.facts))
            arguments += (_lost_delay_ms(claim), to_bytes(claim.delivery), to_bytes(claim.message))
        return self._client.ask(
            self._scripts.renew, keys, arguments, partial(renewals_of, [each.claim.key for each in batch])
        )

    def _holders(self, keys: Sequence[str]) -> list[Holder | None]:
        names = [self._names.lease(to_bytes(key)) for key in keys]
        return self._client.ask(self._scripts.holders, names, (), partial(holders_of, keys))


def _values(ending: Ending | None) -> Iterator[bytes | str]:
    """Which values come with an end, and the values."""
    given = {"v": ending.value, "r": ending.result} if ending else {}
    there = {letter: value for letter, value in given.items() if value is not None}
    yield "".join(there)
    yield from there.values()


def _retention_ms(claim: Claim) -> int:
    return milliseconds("retention", claim.retention) if claim.delivery else 0


def _lost_delay_ms(claim: Claim) -> int:
    return milliseconds("lost_delay", claim.lost_delay) if claim.lost_delay else 0
