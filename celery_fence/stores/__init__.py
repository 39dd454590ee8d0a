"""
WHERE LEASES LIVE. Each store answers the questions of `celery_fence.locking.store` in its own way.

`from_url` is the front door; it imports a driver only when its scheme is asked
for, and opens no connection. Stores are strangers to each other. Each of them
passes the suite in `celery_fence.testing.contract`.

| scheme | lives in |
|---|---|
| `redis://`, `rediss://`, `valkey://`, `valkeys://` | Redis or Valkey over TCP, the ones with an s over TLS |
| `unix://`, `redis+socket://`, `socket://` | Redis or Valkey behind a Unix socket |
| `memory://` | this process: for tests, eager mode and single-process workers |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from celery_fence.errors import ConfigError
from celery_fence.locking.suggest import hint

if TYPE_CHECKING:
    from celery_fence.locking.store import Store

REDIS_SCHEMES = (
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "socket",
    "redis+socket",
)
SCHEMES = (*REDIS_SCHEMES, "memory")
LATER_SCHEMES = ("redis+sentinel", "sentinel", "redis+cluster", "sql+")
USABLE = ", ".join(f"{scheme}://" for scheme in SCHEMES)


def from_url(
    url: str,
    *,
    prefix: str = "fence",
    timeout: float = 5.0,
    counter_retention: float = 604800.0,
) -> Store:
    """
    The store that lives at *url*; nothing is connected yet.

    *prefix* is the first part of every key in the store; *timeout*, in seconds,
    bounds each wait for the server (a question with all its waits and repetitions takes at
    most three times as long); *counter_retention* is how many seconds the token counter
    of an idle key is kept.

    Raises:
        ConfigError: the URL, its scheme or one of its options can't be used; the
            message never contains the URL's password.

    """
    scheme = _scheme(url)
    _check_prefix(prefix)
    _check_seconds("timeout", timeout)
    _check_seconds("counter_retention", counter_retention)
    if scheme == "memory":
        from celery_fence.stores.memory import MemoryStore

        return MemoryStore(
            url.partition("://")[2].strip("/"),
            prefix=prefix,
            counter_retention=counter_retention,
        )
    from celery_fence.stores.redis import RedisStore

    return RedisStore(url, prefix=prefix, timeout=timeout, counter_retention=counter_retention)


def _scheme(url: str) -> str:
    """The scheme of *url*, one of `SCHEMES`; says what can be used where it is none."""
    if not isinstance(url, str) or "://" not in url:
        # The text itself may be a password typed into the wrong place.
        raise ConfigError(f"fence_url must be a URL such as redis://localhost:6379/0; usable: {USABLE}")
    scheme = url.partition("://")[0].lower()
    if scheme in SCHEMES:
        return scheme
    if scheme.startswith(LATER_SCHEMES):
        raise ConfigError(f"fence_url: {scheme}:// can't be used yet; leases can live in {USABLE}")
    raise ConfigError(f"fence_url: unknown scheme {scheme!r}; usable: {USABLE}.{hint(scheme, SCHEMES)}")


def _check_prefix(prefix: str) -> None:
    if not isinstance(prefix, str) or not prefix or set(prefix) & set("{}"):
        # Braces would take the place of our own hash tag in a Cluster.
        raise ConfigError(f"fence_prefix must be a text without braces, not {prefix!r}")


def _check_seconds(name: str, value: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} must be a number of seconds above 0, not {value!r}")
