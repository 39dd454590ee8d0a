"""
From the URL of a Redis or Valkey to the options of a redis-py connection.

Understands redis-py's own URLs and those that Celery and kombu take: socket paths
(``redis+socket:///run/redis.sock?virtual_host=1``) and their spellings of TLS
options. The password goes into the options and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import redis
from redis.connection import URL_QUERY_ARGUMENT_PARSERS

from celery_fence.errors import ConfigError

TLS_SCHEMES = ("rediss", "valkeys")
SOCKET_SCHEMES = ("unix", "socket", "redis+socket")

# They belong to redis-py's pools or to kombu; the store has its own pool.
NOT_FOR_A_CONNECTION = (
    "max_connections",
    "timeout",
    "decode_responses",
    "encoding",
    "encoding_errors",
    "legacy_responses",
    "visibility_timeout",
)

OUR_OWN = ("socket_timeout", "socket_connect_timeout", "retry_on_timeout", "retry_on_error")
"""Options of a connection that the store derives from the TTL."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: *description* for people, *options* (with the password) for the connection class."""

    description: str
    connection_class: type[Any]
    options: Mapping[str, Any] = field(repr=False)

    def without_password(self, text: str) -> str:
        """*text* for people: some servers repeat the command that they don't know, such as AUTH and its password."""
        password = self.options.get("password")
        return text.replace(password, "***") if password else text

    def shows_password(self, text: str) -> bool:
        """Whether the password is in *text*."""
        return self.without_password(text) != text


def parse_address(url: str) -> Address:
    """
    The address in *url*.

    Raises:
        ConfigError: it isn't one; the message never contains the password.

    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # What urllib would quote here may be a part of the password; so is the cause left out.
        raise ConfigError(
            "fence_url: host or port can't be read; a password with /, @, # or : must be percent-encoded"
        ) from None
    shown = _shown(parts, port)
    query = _query(parts, shown)
    if parts.scheme in SOCKET_SCHEMES:
        where: dict[str, Any] = {"path": unquote(_socket_path(parts, shown)), "db": 0}
        kind: type[Any] = redis.UnixDomainSocketConnection
    else:
        where = {
            "host": _host(parts, shown),
            "port": port or 6379,
            "db": _database(parts, shown),
        }
        kind = redis.SSLConnection if parts.scheme in TLS_SCHEMES else redis.Connection
    return Address(shown, kind, {**where, **_credentials(parts, query), **query})


def _shown(parts: SplitResult, port: int | None) -> str:
    """The URL without user, password and options."""
    if parts.scheme in SOCKET_SCHEMES:
        # In unix://:secret@/path the secret stands before the path, never in it.
        return f"{parts.scheme}://{parts.path}"
    host = parts.hostname or "localhost"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{port or 6379}/{parts.path.strip('/') or 0}"


def _host(parts: SplitResult, shown: str) -> str:
    host = unquote(parts.hostname or "localhost")
    try:
        # What looking up its name begins with.
        host.encode("idna")
    except UnicodeError as error:
        raise ConfigError(f"fence_url: the host in {shown} can't be one ({error})") from error
    return host


def _socket_path(parts: SplitResult, shown: str) -> str:
    if not parts.path or parts.hostname:
        raise ConfigError(
            f"fence_url: {shown} names no socket; its path begins with the third slash, as in unix:///run/redis.sock"
        )
    return parts.path


def _database(parts: SplitResult, shown: str) -> int:
    text = parts.path.strip("/")
    if text and not text.isdecimal():
        raise ConfigError(f"fence_url: the database in {shown} must be a number")
    return int(text or 0)


def _credentials(parts: SplitResult, query: Mapping[str, Any]) -> dict[str, str]:
    if "credential_provider" in query:
        # redis-py takes either of the two.
        return {}
    found = {"username": parts.username, "password": parts.password}
    return {name: unquote(text) for name, text in found.items() if text}


def _query(parts: SplitResult, shown: str) -> dict[str, Any]:
    """The URL's options as redis-py's connection takes them."""
    words = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if "virtual_host" in words:
        words["db"] = words.pop("virtual_host").strip("/")
    ours = [name for name in OUR_OWN if name in words]
    if ours:
        raise ConfigError(
            f"fence_url: {ours[0]} can't be set, in the options of {shown}; time-outs and repetitions are derived "
            f"from the TTL of a lease, which they must leave time to be kept. Leave it out."
        )
    if any(name.startswith("ssl_") for name in words) and parts.scheme not in TLS_SCHEMES:
        raise ConfigError(f"fence_url: {shown} has ssl_ options but no TLS; write rediss:// (or valkeys://)")
    return {
        name: _option(name, text, shown) for name, text in words.items() if name not in NOT_FOR_A_CONNECTION
    }


def _option(name: str, text: str, shown: str) -> Any:
    if name == "ssl_cert_reqs":
        return text.lower().removeprefix("cert_")
    if name == "credential_provider":
        return _credential_provider(text, shown)
    parser: Any = URL_QUERY_ARGUMENT_PARSERS.get(name, str)
    try:
        value = parser(text)
    except (TypeError, ValueError):
        raise ConfigError(
            f"fence_url: the value of {name} can't be read, in the options of {shown}"
        ) from None
    if parser in (int, float) and not 0 <= value < math.inf:  # nan is nowhere between
        raise ConfigError(
            f"fence_url: {name} must be a number of 0 or more, not {value!r}, in the options of {shown}"
        )
    return value


def _credential_provider(path: str, shown: str) -> Any:
    """An instance of the class at the dotted *path*, as Celery takes it."""
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), name)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"fence_url: no credential_provider {path!r}, in the options of {shown}") from error
