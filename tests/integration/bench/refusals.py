"""
Ways to make a lease server answer with errors, each a context manager: inside it refuses, after it all is well.

They are given the server and an administrator's connection that nothing of it hits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import redis

from bench.waiting import wait_until
from celery_fence.testing.servers import EmbeddedServer

Refuse = Callable[[EmbeddedServer, redis.Redis], AbstractContextManager[None]]

LOADED = 200_000
"""Keys that the server loads at its start, for some two seconds; it answers between them, every 1024."""


def administrator(server: EmbeddedServer) -> redis.Redis:
    """A connection with a user of its own, that keeps its rights whatever is taken from the others."""
    _appoint(server)
    return redis.Redis(
        host=server.host, port=server.port, username="boss", password="boss", decode_responses=True
    )


@contextmanager
def setting(boss: redis.Redis, name: str, value: Any) -> Iterator[None]:
    """The server's option *name* is *value* in the block."""
    before = boss.config_get(name)[name]
    boss.config_set(name, value)
    try:
        yield
    finally:
        boss.config_set(name, before)


@contextmanager
def read_only(server: EmbeddedServer, boss: redis.Redis) -> Iterator[None]:
    """READONLY: it is a replica now, as after a failover; its primary is out of reach, so it keeps its data."""
    boss.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        boss.replicaof("NO", "ONE")


@contextmanager
def primary_down(server: EmbeddedServer, boss: redis.Redis) -> Iterator[None]:
    """MASTERDOWN: a replica that won't answer from stale data."""
    with setting(boss, "replica-serve-stale-data", "no"), read_only(server, boss):
        yield


@contextmanager
def too_few_replicas(server: EmbeddedServer, boss: redis.Redis) -> Iterator[None]:
    """NOREPLICAS."""
    with setting(boss, "min-replicas-to-write", 1):
        yield


@contextmanager
def no_disk(server: EmbeddedServer, boss: redis.Redis) -> Iterator[None]:
    """MISCONF: its last snapshot failed, as on a full disk."""
    (server.directory / "dump.rdb" / "in the way").mkdir(parents=True, exist_ok=True)
    with setting(boss, "save", "3600 1"):
        boss.bgsave()
        wait_until(lambda: boss.info("persistence")["rdb_last_bgsave_status"] == "err", what="saving failed")
        yield


@contextmanager
def full(server: EmbeddedServer, boss: redis.Redis) -> Iterator[None]:
    """OOM: no memory is left, and nothing may be evicted."""
    with setting(boss, "maxmemory", 1):
        yield


@contextmanager
def long_script(server: EmbeddedServer, boss: redis.Redis) -> Iterator[None]:
    """BUSY: somebody's script doesn't end."""
    thread = threading.Thread(target=_spin, args=(server,))
    with setting(boss, "busy-reply-threshold", 10):
        thread.start()
        try:
            wait_until(lambda: _is_busy(server), what="the script runs")
            yield
        finally:
            boss.script_kill()
            thread.join()


def load(boss: redis.Redis) -> None:
    """Give the server, in another database, what it takes a while to read at its start."""
    boss.eval(f"redis.call('SELECT', 1) for i = 1, {LOADED} do redis.call('SET', i, i) end", 0)


@contextmanager
def loading(server: EmbeddedServer, boss: redis.Redis) -> Iterator[None]:
    """LOADING: restarted (SIGKILL), with so much data (see `load`) that it takes its time."""
    server.options["key-load-delay"] = "-5"  # the shortest sleep there is, at one key in five
    server.kill()
    server.start(loaded=False)
    _appoint(server)
    try:
        yield
    finally:
        boss.config_set("key-load-delay", 0)
        wait_until(lambda: not boss.info("persistence")["loading"], what="everything is loaded")
        server.options.pop("key-load-delay")


@contextmanager
def without(boss: redis.Redis, right: str) -> Iterator[None]:
    """NOPERM: an administrator takes a right away while the workers run."""
    boss.execute_command("ACL", "SETUSER", "default", f"-{right}")
    try:
        yield
    finally:
        boss.execute_command("ACL", "SETUSER", "default", f"+{right}")


@contextmanager
def no_more_clients(server: EmbeddedServer, boss: redis.Redis) -> Iterator[None]:
    """Max number of clients reached: those that were connected have to do so again."""
    with setting(boss, "maxclients", 1):
        boss.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        yield


def _appoint(server: EmbeddedServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "boss", "on", ">boss", "~*", "&*", "+@all")


def _spin(server: EmbeddedServer) -> None:
    with redis.Redis.from_url(server.url) as client, suppress(redis.ResponseError):
        client.eval("while true do end", 0)


def _is_busy(server: EmbeddedServer) -> bool:
    with redis.Redis.from_url(server.url) as client:
        try:
            return not client.ping()
        except redis.ResponseError:
            return True


REFUSALS: dict[str, Refuse] = {
    "READONLY": read_only,
    "MASTERDOWN": primary_down,
    "NOREPLICAS": too_few_replicas,
    "MISCONF": no_disk,
    "OOM": full,
    "BUSY": long_script,
    "LOADING": loading,
    "NOPERM, scripts": lambda _, boss: without(boss, "@scripting"),
    "NOPERM, writing": lambda _, boss: without(boss, "@write"),
    "max clients": no_more_clients,
}
