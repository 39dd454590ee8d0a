"""A server that answers with an error: what the store makes of it, what the message says, and what comes after."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from redis import exceptions

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import Claim, Ending, Granted, Kept, Released, Renewal
from celery_fence.stores import from_url
from celery_fence.stores.redis.failures import (
    AllBusy,
    ServerSilent,
    advice,
    is_lost_connection,
    is_no_primary,
    may_pass,
)
from celery_fence.testing.servers import embedded_server

CLAIM = Claim("tenant:7:sync", "owner", 30.0, delivery="d1", message="m1")


@pytest.fixture(scope="module")
def refusing():
    """A server of this module's own, which each test refuses with and heals again, and its administrator."""
    with embedded_server(options={"busy-reply-threshold": "10"}) as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("ACL", "SETUSER", "boss", "on", ">s3cret", "~*", "&*", "+@all")
        boss = redis.Redis(host=server.host, port=server.port, username="boss", password="s3cret")
        with boss as client:
            yield server, client


@pytest.fixture
def server(refusing):
    return refusing[0]


@pytest.fixture
def boss(refusing):
    refusing[1].flushall()
    return refusing[1]


@pytest.fixture
def store(server, boss):
    made = from_url(server.url, timeout=1)
    yield made
    made.close()


@contextmanager
def settings(boss, **changed):
    names = {name.replace("_", "-"): value for name, value in changed.items()}
    before = {name: boss.config_get(name)[name] for name in names}
    for name, value in names.items():
        boss.config_set(name, value)
    try:
        yield
    finally:
        for name in reversed(names):
            boss.config_set(name, before[name])


@contextmanager
def replica(server, boss):
    boss.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        boss.replicaof("NO", "ONE")


@contextmanager
def orphaned_replica(server, boss):
    with settings(boss, replica_serve_stale_data="no"), replica(server, boss):
        yield


@contextmanager
def no_disk(server, boss):
    (server.directory / "dump.rdb" / "in the way").mkdir(parents=True, exist_ok=True)
    with settings(boss, save="3600 1"):
        boss.bgsave()
        until(lambda: boss.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield


@contextmanager
def long_script(server, boss):
    def spin():
        with redis.Redis.from_url(server.url) as other, pytest.raises(exceptions.ResponseError):
            other.eval("while true do end", 0)

    thread = threading.Thread(target=spin)
    thread.start()
    until(lambda: not is_free(server))
    try:
        yield
    finally:
        boss.script_kill()
        thread.join()


def until(fact):
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_free(server):
    with redis.Redis.from_url(server.url) as other:
        try:
            return other.ping()
        except exceptions.ResponseError:
            return False


@contextmanager
def without(server, boss, *rights):
    """Live, as an administrator does it while workers run."""
    boss.execute_command("ACL", "SETUSER", "default", *rights)
    try:
        yield
    finally:
        boss.execute_command("ACL", "SETUSER", "default", "allkeys", "+@all")


@contextmanager
def no_more_clients(server, boss):
    with settings(boss, maxclients=1):
        boss.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        yield


Refusal = Callable[..., Iterator[None]]

REFUSALS: dict[str, tuple[Refusal, str]] = {
    "READONLY": (replica, "read-only replica; point fence_url at the primary"),
    "MASTERDOWN": (orphaned_replica, "a replica whose primary is down"),
    "NOREPLICAS": (lambda _, boss: settings(boss, min_replicas_to_write=1), "too few replicas"),
    "MISCONF": (no_disk, "can't save to its disk"),
    "BUSY": (long_script, "another client's script"),
    "NOPERM, scripts": (lambda *given: without(*given, "-@scripting"), "may not run 'evalsha'; grant"),
    "NOPERM, writing": (lambda *given: without(*given, "-@write"), "may not run 'pexpire'; grant"),
    "NOPERM, keys": (
        lambda *given: without(*given, "resetkeys", "~theirs:*"),
        "may not touch our keys; grant",
    ),
    "max clients": (no_more_clients, "takes no more connections; raise maxclients"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_no_answer_says_what_to_do_and_is_over_when_it_is(name, store, server, boss):
    refuse, says = REFUSALS[name]
    grant = store.acquire(CLAIM)
    renewal = Renewal(CLAIM, grant.token, grant.since)
    with refuse(server, boss):
        with pytest.raises(StoreUnavailable):
            store.acquire(Claim("another", "o", 30.0))
        with pytest.raises(StoreUnavailable, match=says):
            store.renew([renewal])
        with pytest.raises(StoreUnavailable):
            store.release(CLAIM, grant.token, Ending("returned", b"42"))

    assert store.renew([renewal]) == [Kept()]
    assert store.release(CLAIM, grant.token, Ending("returned", b"42")) == Released()
    assert isinstance(store.acquire(Claim("another", "o", 30.0)), Granted)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusing_server_is_found_out_by_the_check_at_start(name, store, server, boss):
    refuse, _ = REFUSALS[name]
    with refuse(server, boss), pytest.raises(StoreUnavailable):
        store.check()

    assert store.check() == []


OLDER_SERVERS = {
    "READONLY inside a script, up to 6": (
        "Error running script (call to f_1): @user_script:119: -READONLY You can't write against a read only replica.",
        "read-only replica",
    ),
    "OOM inside a script, up to 6": (
        "Error running script (call to f_1): @user_script:1: -OOM command not allowed when used memory > 'maxmemory'.",
        "out of memory",
    ),
    "NOREPLICAS inside a script, up to 6": (
        "Error running script (call to f_1): @user_script:1: -NOREPLICAS Not enough good replicas to write.",
        "too few replicas",
    ),
    "a command not permitted, 6.0": (
        "Error running script (call to f_1): -NOPERM this user has no permissions to run the 'hset' command",
        "may not run 'hset'",
    ),
    "a command not permitted, 6.2 and 7.0": (
        "The user executing the script can't run this command or subcommand script: f1, on @user_script:17.",
        "may not do all that leases need",
    ),
    "a key not permitted, 6.2 and 7.0": (
        "The user executing the script can't access at least one of the keys mentioned in the command arguments",
        "may not touch our keys",
    ),
    "a renamed command": (
        "Unknown Redis command called from script script: f1, on @user_script:17.",
        "renamed",
    ),
    "CLUSTERDOWN, redis-py before 6": ("CLUSTERDOWN Hash slot not served", "its cluster is down"),
    "CROSSSLOT, redis-py before 6": (
        "CROSSSLOT Keys in request don't hash to the same slot",
        "Redis Cluster",
    ),
    "MOVED, redis-py before 6": ("MOVED 42 10.0.0.1:6379", "Redis Cluster"),
    "TRYAGAIN, redis-py before 6": (
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "Redis Cluster",
    ),
    "scripts renamed": ("unknown command 'EVALSHA', with args beginning with: 'f1'", "can't run scripts"),
}


DOWN = "Link with MASTER is down"


@pytest.mark.parametrize("what", OLDER_SERVERS)
def test_the_wording_of_other_versions_is_understood(what):
    said, advised = OLDER_SERVERS[what]

    assert advised in advice(exceptions.ResponseError(said))


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (exceptions.MovedError("42 10.0.0.1:6379"), "Redis Cluster"),
        (exceptions.AskError("42 10.0.0.1:6379"), "Redis Cluster"),
        (exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"), "Redis Cluster"),
        (exceptions.TryAgainError("Multiple keys request during rehashing of slot"), "Redis Cluster"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "still loading"),
    ],
)
def test_what_is_not_provoked_here_has_its_advice_too(error, advised):
    assert advised in advice(error)


def quoted(cause):
    """As redis-py makes an error of its own of one of the system's."""
    try:
        try:
            raise cause
        except OSError as below:
            raise exceptions.ConnectionError(f"Error connecting: {below}")  # noqa: B904 - neither does redis-py
    except exceptions.ConnectionError as error:
        return error


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (quoted(ssl.SSLCertVerificationError("certificate verify failed")), "ssl_ca_certs"),
        (quoted(ssl.SSLError(1, "wrong version number")), "whether it speaks TLS"),
        (quoted(ssl.SSLEOFError(8, "EOF occurred in violation of protocol")), "can't be reached"),
        (quoted(OSError(24, "Too many open files")), "ulimit -n"),
        (quoted(socket.gaierror(-2, "Name or service not known")), "name can't be resolved"),
        (quoted(ConnectionRefusedError(111, "Connection refused")), "see whether it runs"),
        (exceptions.ConnectionError("Connection closed by server."), "rediss://"),
        (
            exceptions.ConnectionError(
                "Error while reading from localhost:5672 : (104, 'Connection reset by peer')"
            ),
            "whether it is a Redis at all",
        ),
        (
            exceptions.ConnectionError("Error 104 connecting to localhost:6379. Connection reset by peer."),
            "can't be reached",
        ),
        (exceptions.ResponseError("DENIED Redis is running in protected mode"), "protected mode"),
        (exceptions.ResponseError("DB index is out of range"), "no database of that number"),
        (exceptions.InvalidResponse("Protocol Error: b'HTTP/1.1 400'"), "something else listens"),
    ],
)
def test_where_the_cause_is_known_it_is_said_what_to_do(error, advised):
    assert advised in advice(error)


def test_only_a_lost_connection_a_loading_server_and_a_replica_are_asked_again_at_once():
    said, _ = OLDER_SERVERS["READONLY inside a script, up to 6"]
    replicas = [
        exceptions.ReadOnlyError(),
        exceptions.MasterDownError(DOWN),
        exceptions.ResponseError(said),
        exceptions.ResponseError(f"MASTERDOWN {DOWN}"),  # of a redis-py before 6
    ]
    passing = [
        exceptions.ConnectionError(),
        exceptions.TimeoutError(),
        exceptions.BusyLoadingError(),
        OSError(),
    ]
    lasting = [
        exceptions.NoPermissionError(),
        exceptions.AuthenticationError(),
        exceptions.OutOfMemoryError(),
        exceptions.ResponseError("BUSY Redis is busy running a script."),
        exceptions.ClusterDownError(DOWN),
    ]

    assert all(is_no_primary(error) and may_pass(error) for error in replicas)
    assert all(may_pass(error) and not is_no_primary(error) for error in passing)
    assert not any(may_pass(error) or is_no_primary(error) for error in lasting)


def test_only_a_lost_connection_speaks_against_its_idle_sisters():
    assert is_lost_connection(exceptions.ConnectionError())
    assert is_lost_connection(ServerSilent())
    assert not is_lost_connection(AllBusy())
    assert not is_lost_connection(exceptions.ResponseError())
    assert not any(may_pass(error) for error in (AllBusy(), ServerSilent()))
