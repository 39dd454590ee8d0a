"""The Redis store keeps the contract, on the embedded server and on the machine's own Redis."""

from __future__ import annotations

import uuid

import pytest
import redis

from celery_fence.stores import from_url
from celery_fence.testing.contract import StoreContract

LOCAL = "redis://127.0.0.1:6379/15"


class TestEmbeddedServer(StoreContract):
    @pytest.fixture
    def store(self, store):
        return store

    @pytest.fixture
    def lose_everything(self, client):
        return client.flushall

    @pytest.fixture
    def copy_data(self, client):
        return lambda: copy_of(client, "*")


@pytest.mark.needs("redis")
class TestLocalRedis(StoreContract):
    @pytest.fixture
    def prefix(self):
        return f"fence-contract-{uuid.uuid4().hex}"

    @pytest.fixture
    def lose_everything(self, prefix):
        return lambda: delete_all_of(prefix)

    @pytest.fixture
    def copy_data(self, prefix):
        return lambda: copy_of(redis.Redis.from_url(LOCAL), f"{prefix}:*")

    @pytest.fixture
    def store(self, prefix):
        made = from_url(LOCAL, prefix=prefix)
        yield made
        made.close()
        delete_all_of(prefix)


def copy_of(client, pattern):
    """What brings the keys of that pattern back as they are now, and deletes all others of it."""
    names = set(client.scan_iter(match=pattern))  # SCAN may name a key twice
    kept = [(name, client.pttl(name), client.dump(name)) for name in names]

    def bring_back():
        for name in client.scan_iter(match=pattern):
            client.delete(name)
        for name, left_ms, data in kept:
            client.restore(name, max(left_ms, 0), data)

    return bring_back


def delete_all_of(prefix):
    """Not FLUSHDB: the machine's Redis may be somebody's."""
    with redis.Redis.from_url(LOCAL) as client:
        for name in client.scan_iter(match=f"{prefix}:*", count=1000):
            client.delete(name)
