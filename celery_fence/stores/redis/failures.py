"""What a failure of Redis means, and what to do about it, as one sentence for people."""

from __future__ import annotations

import re
from collections.abc import Mapping

from redis import exceptions

from celery_fence.errors import StoreUnavailable

GRANTS = (
    "+eval +evalsha +time +hmget +hset +hdel +del +pttl +pexpire"
    " +zadd +zrem +zrangebyscore +zremrangebyscore +select +client|setname +info ~<fence_prefix>:*"
)
"""What a user of the server needs (`ACL SETUSER`); without ``+info`` the check at start says less, no more."""

CLUSTER = "it is a Redis Cluster, which can't be used yet; point fence_url at a single server"

ADVICE_BY_TYPE: Mapping[str, str] = {
    "ReadOnlyError": "it is a read-only replica; point fence_url at the primary",
    "OutOfMemoryError": "it is out of memory; raise maxmemory, and keep maxmemory-policy at noeviction",
    "BusyLoadingError": "it is still loading its data; wait until it has started",
    "AuthenticationError": "it wants another user name or password; check those in fence_url",
    "AuthenticationWrongNumberOfArgsError": "it takes no user name; leave it out of fence_url",
    "MaxConnectionsError": "it takes no more connections; raise maxclients",
    "MasterDownError": "it is a replica whose primary is down; point fence_url at the primary",
    "ClusterDownError": "its cluster is down; see CLUSTER INFO",
    "MovedError": CLUSTER,
    "AskError": CLUSTER,
    "TryAgainError": CLUSTER,
    "ClusterCrossSlotError": CLUSTER,
    "TimeoutError": "it didn't answer in time; see whether it is overloaded, frozen or cut off",
}

ADVICE_BY_WORD: Mapping[str, str] = {
    "READONLY": ADVICE_BY_TYPE["ReadOnlyError"],
    "NOREPLICAS": "too few replicas are in touch; see min-replicas-to-write",
    "OOM": ADVICE_BY_TYPE["OutOfMemoryError"],
    "BUSY": "another client's script keeps it busy; see SCRIPT KILL",
    "MISCONF": "it can't save to its disk, so it refuses writes; see its log",
    "MASTERDOWN": ADVICE_BY_TYPE["MasterDownError"],
    "CLUSTERDOWN": ADVICE_BY_TYPE["ClusterDownError"],
    "CROSSSLOT": CLUSTER,
    "MOVED ": CLUSTER,
    "TRYAGAIN": CLUSTER,
    "NOAUTH": ADVICE_BY_TYPE["AuthenticationError"],
    "WRONGPASS": ADVICE_BY_TYPE["AuthenticationError"],
    "WRONGTYPE": "another program writes under our names; give it or us another fence_prefix",
    "unknown command": "it can't run scripts; they may be renamed or forbidden, or it isn't a Redis",
    "Unknown Redis command": "it can't run a command that scripts need; it may be renamed or forbidden",
    "max number of clients": ADVICE_BY_TYPE["MaxConnectionsError"],
}

FORBIDDEN = re.compile(
    "NOPERM|no permission|No permission|executing the script can't|at least one of the keys"
)
"""How servers from 6 on word it, at a command of ours and at one inside a script; redis-py knows only the former."""

COMMAND = re.compile(r"'([\w|-]+)' command")

UNREACHABLE = "it can't be reached; see whether it runs and fence_url is right"
ODD = "it refused; see its log"


def unavailable(question: str, server: str, error: BaseException) -> StoreUnavailable:
    """The error for *question*, such as ``"acquire"``, that *server* (without password) didn't answer."""
    said = f"{type(error).__name__}: {error}"
    return StoreUnavailable(f"The lease store {server} didn't answer {question!r}: {advice(error)}. ({said})")


def advice(error: BaseException) -> str:
    """What *error* means and what to do, beginning with "it", the server."""
    if isinstance(error, exceptions.NoPermissionError) or FORBIDDEN.search(str(error)):
        return _missing_permission(str(error))
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
    passing = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
    return isinstance(error, passing) or is_no_primary(error)


def is_no_primary(error: BaseException) -> bool:
    """
    Whether the server is only a replica: the primary is elsewhere by now, and its name has to be looked up again.

    Up to version 6 of the server, the word stands in the middle of an error of the script;
    before 6 of redis-py, it has no class of its own.
    """
    kinds = (exceptions.ReadOnlyError, exceptions.MasterDownError)
    return isinstance(error, kinds) or "-READONLY" in str(error) or str(error).startswith("MASTERDOWN")


def _missing_permission(said: str) -> str:
    """Names what is missing where the server does."""
    command = COMMAND.search(said)
    rest = "touch our keys" if "key" in said else "do all that leases need"
    return f"its user may not {f'run {command[1]!r}' if command else rest}; grant {GRANTS}"
