"""What a failure of Redis means, and what to do about it, as one sentence for people."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from redis import exceptions

from celery_fence.errors import StoreUnavailable

if TYPE_CHECKING:
    from celery_fence.stores.redis.urls import Address

GRANTS = (
    "+eval +evalsha +time +hmget +hset +hdel +del +pttl +pexpire"
    " +zadd +zrem +zrangebyscore +zremrangebyscore +select +client|setname +info ~<fence_prefix>:*"
)
"""What a user of the server needs (`ACL SETUSER`); without ``+info`` the check at start says less, no more."""

SHOWN = 200
"""How much of what the server or the driver said is repeated, in characters: it may be a web page."""

FIRST_WORD = 40
"""How much of an answer that can't be understood is shown, in bytes."""

CLUSTER = "it is a Redis Cluster, which can't be used yet; point fence_url at a single server"

NONSENSE = (
    "it said what no Redis says to a lease script; see whether something else listens there, or a proxy on the way "
    "is broken"
)

UNREACHABLE = "it can't be reached; see whether it runs and fence_url is right"
UNKNOWN_NAME = "its name can't be resolved; see the host in fence_url, and the name server"
NOT_TRUSTED = (
    "its certificate isn't accepted; give the CA that has signed it (ssl_ca_certs in fence_url), and the name that "
    "it is made out to"
)
NO_TLS = "TLS can't be agreed on; see the ssl_ options of fence_url, and whether it speaks TLS there (else redis://)"
TLS_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
HUNG_UP = (
    "it closed the connection; see its log, whether it is a Redis at all, and whether it wants TLS (rediss://) or none "
    "(redis://)"
)
SILENT_TLS = (
    "it didn't answer in time as TLS was being set up; see whether it speaks TLS at that port, and whether it is "
    "overloaded, frozen or cut off"
)
ODD = "it refused; see its log"

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
    "AllBusy": (
        "all connections of this process to it were in use; it answers too slowly for so many runs at once: lower "
        "the worker's concurrency, or bring the server nearer"
    ),
    "ServerSilent": (
        "it didn't answer in time; see whether it is overloaded, frozen or cut off, or speaks TLS where fence_url "
        "doesn't (rediss://), or the other way round"
    ),
    "TimeoutError": "it didn't answer in time; see whether it is overloaded, frozen or cut off",
    "InvalidResponse": NONSENSE,
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
    "DENIED": "it is in protected mode, and so takes local connections only; set a password (requirepass) there",
    "DB index is out of range": "it has no database of that number; see fence_url, and `databases` there",
    "SELECT is not allowed in cluster mode": CLUSTER,
    "Connection closed by server": HUNG_UP,
    "'Connection reset by peer'": HUNG_UP,  # so quoted while reading; a connect that is reset never got through
    "Error setting client name": NONSENSE,
    "Invalid Database": NONSENSE,
    "Invalid RESP version": NONSENSE,
}

TOO_MANY_FILES = "it wasn't asked: too many files are open here; raise the limit of this process (ulimit -n)"

FORBIDDEN = re.compile(
    "NOPERM|no permission|No permission|executing the script can't|at least one of the keys"
)
"""How servers from 6 on word it, at a command of ours and at one inside a script; redis-py knows only the former."""

COMMAND = re.compile(r"'([\w|-]+)' command")


class Unreadable(exceptions.RedisError):
    """The server gave an answer that no script of ours gives; says what it was."""


class AllBusy(exceptions.TimeoutError):
    """No connection was free in time: nothing was asked."""


class ServerSilent(exceptions.TimeoutError):
    """No answer on a fresh connection either: it isn't the connection's fault."""


def unavailable(question: str, address: Address, error: BaseException) -> StoreUnavailable:
    """
    The error for *question*, such as ``"acquire"``, that the server at *address* failed to answer.

    It may have answered, with an error, and it may have done what it was asked: so the words say neither.
    """
    said = address.without_password(f"{type(error).__name__}: {error}")
    shown = said if len(said) <= SHOWN else f"{said[:SHOWN]}..."
    return StoreUnavailable(
        f"The lease store {address.description} gave no usable answer to {question!r}: {advice(error)}. ({shown})"
    )


def shape_of(answer: Any) -> str:
    """*answer* for people: how it begins. What a run has returned may be further on."""
    if isinstance(answer, list):
        return f"{len(answer)} items, first {shape_of(answer[0])}" if answer else "an empty list"
    if isinstance(answer, bytes):
        return repr(answer[:FIRST_WORD]) + ("..." if len(answer) > FIRST_WORD else "")
    return repr(answer)


def advice(error: BaseException) -> str:
    """What *error* means and what to do, beginning with "it", the server."""
    if isinstance(error, Unreadable):
        return NONSENSE
    return _said_below(error) or _said_by(error)


def _said_by(error: BaseException) -> str:
    if isinstance(error, exceptions.NoPermissionError) or FORBIDDEN.search(str(error)):
        return _missing_permission(str(error))
    for kind in type(error).__mro__:
        if kind.__name__ in ADVICE_BY_TYPE:
            return ADVICE_BY_TYPE[kind.__name__]
    for word, found in ADVICE_BY_WORD.items():
        if word in str(error):
            return found
    return UNREACHABLE if isinstance(error, exceptions.ConnectionError | OSError) else ODD


def _said_below(error: BaseException) -> str | None:
    """What is known from what redis-py made *error* of: the system's own error, which it only quotes."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return NOT_TRUSTED
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, TLS_ENDED):
            return NO_TLS
        if isinstance(cause, socket.gaierror):
            return UNKNOWN_NAME
        if isinstance(cause, TimeoutError) and "handshake" in str(cause):
            return SILENT_TLS
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            return TOO_MANY_FILES
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def may_pass(error: BaseException) -> bool:
    """Whether the same question on a fresh connection may well be answered: all questions bear repeating."""
    lasting = (exceptions.AuthenticationError, exceptions.AuthorizationError, ServerSilent, AllBusy)
    return (is_lost_connection(error) and not isinstance(error, lasting)) or is_no_primary(error)


def is_lost_connection(error: BaseException) -> bool:
    """Whether the connection failed on which the question was asked, rather than the question."""
    passing = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
    return isinstance(error, passing) and not isinstance(error, AllBusy)


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
