"""Where leases live when ``fence_url`` doesn't say: in the Redis that Celery uses already."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

READABLE: Final = ("redis", "rediss", "redis+socket", "unix", "valkey", "valkeys")
CELERYS_OWN: Final = ("socket_timeout", "socket_connect_timeout", "retry_on_timeout", "retry_on_error")
_WITH_TLS: Final = {"redis": "rediss", "valkey": "valkeys"}


@dataclass(frozen=True, slots=True)
class Nowhere:
    """There is no place for leases; *advice* says what to set."""

    advice: str


def inherited_url(app: Any, *, setting: str) -> str | Nowhere:
    """
    The URL of the Redis result backend, else of the Redis broker, TLS options included, time-outs left out.

    `Nowhere` if neither is one server that celery-fence can read (a list of servers
    or a Sentinel isn't); it says how to write *setting*. Not an error yet: Celery
    shares the tasks of one app with every other app of the process, and those that
    never run a fenced task need no place for its leases.
    """
    conf = app.conf
    candidates = (
        (conf.result_backend, conf.get("redis_backend_use_ssl")),
        (conf.broker_url, conf.get("broker_use_ssl")),
    )
    for url, tls in candidates:
        found = _one_server(url)
        if found is not None:
            return _with_tls(_without_timeouts(found), tls)
    return Nowhere(
        f"celery-fence doesn't know where to keep its leases: neither the result backend "
        f"({_scheme(conf.result_backend)}) nor the broker ({_scheme(conf.broker_url)}) is a single Redis. "
        f"Set {setting!r}, for example to 'redis://localhost:6379/0', or to 'memory://' in tests."
    )


def _one_server(url: object) -> str | None:
    """*url* if it names one Redis server in a form we can read."""
    if isinstance(url, list | tuple) and len(url) == 1:
        return _one_server(url[0])
    if not isinstance(url, str) or ";" in url:
        return None
    scheme, separator, rest = url.partition("://")
    if scheme not in READABLE or not separator or "," in rest.partition("?")[0]:
        return None
    return url


def _without_timeouts(url: str) -> str:
    """*url* without what is meant for Celery's own connections: those to a lease store have time-outs by the TTL."""
    place, _, query = url.partition("?")
    kept = [option for option in query.split("&") if option.partition("=")[0] not in CELERYS_OWN]
    return f"{place}?{'&'.join(kept)}" if any(kept) else place


def _with_tls(url: str, tls: object) -> str:
    """*url* with what Celery's ``..._use_ssl`` setting says, as ``?ssl_...=`` options."""
    if not tls:
        return url
    scheme, _, rest = url.partition("://")
    secure = f"{_WITH_TLS.get(scheme, scheme)}://{rest}"
    if not isinstance(tls, dict):
        return secure
    options = urlencode(_as_texts(tls))
    return f"{secure}{'&' if '?' in rest else '?'}{options}" if options else secure


def _as_texts(tls: Mapping[str, Any]) -> dict[str, str]:
    """The options that a URL can carry: texts, numbers, and the constants of the `ssl` module."""
    return {
        name if name.startswith("ssl_") else f"ssl_{name}": _as_text(value)
        for name, value in tls.items()
        if isinstance(value, str | int | enum.Enum)
    }


def _as_text(value: str | float | enum.Enum) -> str:
    """``required`` for ``ssl.CERT_REQUIRED``, the word that redis-py takes."""
    if isinstance(value, enum.Enum):
        return value.name.removeprefix("CERT_").lower()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scheme(url: object) -> str:
    """What may be said about *url* in a message: never its password."""
    if isinstance(url, list | tuple):
        return "a list of servers"
    if not isinstance(url, str) or not url:
        return "none"
    return url.partition("://")[0] + ("://, several servers" if ";" in url else "://")
