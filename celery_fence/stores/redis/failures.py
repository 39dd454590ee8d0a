"""What a failure of Redis means, and what to do about it, as one sentence for people."""

from __future__ import annotations

from collections.abc import Mapping

from redis import exceptions

from celery_fence.errors import StoreUnavailable

ADVICE_BY_TYPE: Mapping[str, str] = {
    "ReadOnlyError": "it is a read-only replica; point fence_url at the primary",
    "OutOfMemoryError": "it is out of memory; raise maxmemory, and keep maxmemory-policy at noeviction",
    "BusyLoadingError": "it is still loading its data; wait until it has started",
    "NoPermissionError": "its user may not do this; grant +eval +evalsha +time, the hash, sorted-set and"
    " expiry commands, and ~<fence_prefix>:*",
    "AuthenticationError": "it wants another user name or password; check those in fence_url",
    "AuthenticationWrongNumberOfArgsError": "it takes no user name; leave it out of fence_url",
    "MaxConnectionsError": "it takes no more connections; raise maxclients",
    "ClusterDownError": "its cluster is down; see CLUSTER INFO",
    "MovedError": "it is a Redis Cluster, which can't be used yet; point fence_url at a single server",
    "CrossSlotError": "it is a Redis Cluster, which can't be used yet; point fence_url at a single server",
    "TimeoutError": "it didn't answer in time; see whether it is overloaded, frozen or cut off",
}

ADVICE_BY_WORD: Mapping[str, str] = {
    "NOREPLICAS": "too few replicas are in touch; see min-replicas-to-write",
    "OOM": ADVICE_BY_TYPE["OutOfMemoryError"],
    "BUSY": "another client's script keeps it busy; see SCRIPT KILL",
    "MISCONF": "it can't save to its disk, so it refuses writes; see its log",
    "MASTERDOWN": "it is a replica whose primary is down; point fence_url at the primary",
    "NOPERM": ADVICE_BY_TYPE["NoPermissionError"],
    "NOAUTH": ADVICE_BY_TYPE["AuthenticationError"],
    "WRONGPASS": ADVICE_BY_TYPE["AuthenticationError"],
    "WRONGTYPE": "another program writes under our names; give it or us another fence_prefix",
    "unknown command": "it can't run scripts; they may be renamed or forbidden, or it isn't a Redis",
    "max number of clients": ADVICE_BY_TYPE["MaxConnectionsError"],
}

UNREACHABLE = "it can't be reached; see whether it runs and fence_url is right"
ODD = "it refused; see its log"


def unavailable(question: str, server: str, error: BaseException) -> StoreUnavailable:
    """The error for *question*, such as ``"acquire"``, that *server* (without password) didn't answer."""
    said = f"{type(error).__name__}: {error}"
    return StoreUnavailable(f"The lease store {server} didn't answer {question!r}: {advice(error)}. ({said})")


def advice(error: BaseException) -> str:
    """What *error* means and what to do, beginning with "it", the server."""
    for kind in type(error).__mro__:
        if kind.__name__ in ADVICE_BY_TYPE:
            return ADVICE_BY_TYPE[kind.__name__]
    for word, found in ADVICE_BY_WORD.items():
        if word in str(error):
            return found
    return UNREACHABLE if isinstance(error, exceptions.ConnectionError | OSError) else ODD


def may_pass(error: BaseException) -> bool:
    """Whether the same question on a fresh connection may well be answered: all questions bear repeating."""
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return False
    passing = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, OSError)
    return isinstance(error, passing)
