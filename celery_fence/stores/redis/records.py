"""The idempotency records on one Redis or Valkey server; those of a run ride in its acquire and release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from celery_fence.locking.records import ClaimedElsewhere, Done, Record
from celery_fence.locking.store import Claim, Ending
from celery_fence.stores.redis.answers import claimed_of, ended_of, facts_text, keys_of, record_of, records_of
from celery_fence.stores.redis.client import Client
from celery_fence.stores.redis.names import Names, to_bytes
from celery_fence.stores.redis.scripts import Scripts
from celery_fence.stores.redis.units import batches, milliseconds


class RedisRecords:
    """The power `Recording` of a store with these three."""

    _client: Client
    _names: Names
    _scripts: Scripts

    def claim_record(self, claim: Claim, token: int) -> Done | ClaimedElsewhere | None:
        """As `Recording.claim_record`; one round trip."""
        names = self._names.record(to_bytes(claim.record))
        read = partial(claimed_of, claim.record)
        return self._client.ask(self._scripts.claim_record, names, _words(claim, token), read)

    def end_record(self, claim: Claim, token: int, ending: Ending | None) -> None:
        """As `Recording.end_record`; one round trip."""
        returned = ending is not None and ending.how == "returned"
        words = [*_words(claim, token), int(returned)]
        if ending is not None and ending.result is not None:
            words.append(ending.result)
        self._client.ask(
            self._scripts.end_record, self._names.record(to_bytes(claim.record)), words, ended_of
        )

    def record(self, key: str) -> Record | None:
        """As `Recording.record`; one round trip."""
        return self._records([key], with_values=True)[0]

    def records(self) -> Iterator[Record]:
        """As `Recording.records`; one round trip for each of the 64 buckets and for each 100 records in one."""
        for index in self._names.record_indexes():
            keys = self._client.ask(self._scripts.list, [index], (), keys_of)
            for batch in batches(keys):
                yield from filter(None, self._records(batch, with_values=False))

    def delete_record(self, key: str, owner: str | None = None) -> Record | None:
        """As `Recording.delete_record`; one round trip."""
        name = to_bytes(key)
        arguments = (int(owner is not None), to_bytes(owner or ""), name)
        names = self._names.record(name)
        return self._client.ask(self._scripts.delete_record, names, arguments, partial(record_of, key))

    def _records(self, keys: Sequence[str], *, with_values: bool) -> list[Record | None]:
        names = [self._names.record(to_bytes(key))[0] for key in keys]
        return self._client.ask(self._scripts.records, names, (int(with_values),), partial(records_of, keys))


def record_retention_ms(claim: Claim) -> int:
    """How long the record of *claim* is kept; 0 where it has none."""
    return milliseconds("record_retention", claim.record_retention) if claim.record else 0


def _words(claim: Claim, token: int) -> list[bytes | str | int]:
    """What scripts about a record alone are told of whoever claims it."""
    return [
        to_bytes(claim.owner),
        token,
        to_bytes(claim.key),
        to_bytes(claim.record),
        record_retention_ms(claim),
        facts_text(claim.facts),
    ]
