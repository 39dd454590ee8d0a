"""
The token on its way: what a message, a stream entry or an HTTP call carries.

A stamp says on whose behalf something was sent: the *scope* within which tokens
compare (the key of the lease, or the aggregate of a stream), the fencing token, and
the owner who tells two holders of an equal token apart. A guard takes it in the
place of a lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, unquote_to_bytes

from celery_fence.errors import MalformedStamp
from celery_fence.fencing.attempt import Attempt
from celery_fence.fencing.writer import Shown, writer_of
from celery_fence.locking.lease import HEADER_SAFE

TOKEN = "fencing_token"  # noqa: S105 - the name of a header, as below
SCOPE = "fencing_scope"
OWNER = "fencing_owner"
HTTP_TOKEN = "X-Fencing-Token"  # noqa: S105
HTTP_SCOPE = "X-Fencing-Scope"
HTTP_OWNER = "X-Fencing-Owner"

MOST = 2**53
"""Above every token: they are microseconds since the epoch, and each store must keep them exactly."""

LONGEST = 4096
"""Characters of a scope or an owner; longer ones come from nobody who means well."""

SHOWN = 60
"""Characters of a wrong value that an error repeats."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """
    A fencing token, the *scope* it compares in, and its owner (None where the sender didn't say).

    Raises:
        MalformedStamp: there is no such token, scope or owner.

    """

    scope: str
    token: int
    owner: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.token, int) or isinstance(self.token, bool) or not 0 < self.token < MOST:
            raise MalformedStamp(
                f"A fencing token is a whole number from 1 to 2**53, not {_short(self.token)}."
            )
        for name, text in (("scope", self.scope), ("owner", self.owner)):
            if not _is_name(text) and not (name == "owner" and text is None):
                raise MalformedStamp(
                    f"The {name} of a fencing token is a text of 1 to {LONGEST} characters, not {_short(text)}."
                )

    @property
    def key(self) -> str:
        """The scope, under the name that a lease has for it."""
        return self.scope

    @classmethod
    def of(cls, lease: Shown | None = None) -> Self:
        """
        The stamp of *lease*, or of the lease that the running code is under.

        Raises:
            UnfencedWrite: there is no lease, or it has no token.

        """
        attempt = Attempt("Stamp.of()", "Stamp.of(lease)")
        writer = writer_of(lease, mode="enforce", attempt=attempt)
        if writer.token is None:
            raise attempt.tokenless()
        return cls(writer.key, writer.token, writer.owner)

    def headers(self) -> dict[str, Any]:
        """The stamp as headers of a Celery or kombu message, or as fields of a stream entry."""
        owner = {} if self.owner is None else {OWNER: self.owner}
        return {TOKEN: self.token, SCOPE: self.scope, **owner}

    def http_headers(self) -> dict[str, str]:
        """The stamp as HTTP headers: those of `lease.headers()`, and the owner."""
        headers = {HTTP_TOKEN: str(self.token), HTTP_SCOPE: self.scope, HTTP_OWNER: self.owner}
        return {
            name: quote(text, safe=HEADER_SAFE, errors="surrogatepass")
            for name, text in headers.items()
            if text is not None
        }

    @classmethod
    def read(cls, headers: Mapping[Any, Any] | None) -> Self | None:
        """
        The stamp in the headers of a message or the fields of a stream entry; None where there is none.

        Names and values may be text or bytes, as drivers give them.

        Raises:
            MalformedStamp: there is half a stamp, or something that can't be one.

        """
        found = {name: _found(headers or {}, name) for name in (TOKEN, SCOPE, OWNER)}
        return cls._of_raw(found[TOKEN], found[SCOPE], found[OWNER], (TOKEN, SCOPE))

    @classmethod
    def read_http(cls, headers: Mapping[str, str]) -> Self | None:
        """
        The stamp in the headers of an HTTP request, however their names are capitalised; None where there is none.

        Raises:
            MalformedStamp: there is half a stamp, or something that can't be one.

        """
        found = {name.lower(): value for name, value in headers.items()}
        token, scope, owner = (found.get(name.lower()) for name in (HTTP_TOKEN, HTTP_SCOPE, HTTP_OWNER))
        return cls._of_raw(token, _unquoted(scope), _unquoted(owner), (HTTP_TOKEN, HTTP_SCOPE))

    @classmethod
    def _of_raw(cls, token: Any, scope: Any, owner: Any, names: tuple[str, str]) -> Self | None:
        if token is None and scope is None:
            return None
        if token is None or scope is None:
            raise MalformedStamp(f"{names[0]} and {names[1]} go together, and only one of them is there.")
        return cls(_text(scope), _whole(token), None if owner is None else _text(owner))


def _found(headers: Mapping[Any, Any], name: str) -> Any:
    return headers.get(name, headers.get(name.encode()))


def _text(raw: Any) -> Any:
    if not isinstance(raw, bytes):
        return raw
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise MalformedStamp(
            "The scope and the owner of a fencing token are UTF-8, and these bytes aren't."
        ) from error


def _unquoted(value: str | None) -> str | None:
    """
    A header's value without its percent-escapes: a key may contain what a header can't.

    Servers give headers as Latin-1, byte by byte; a client that wrote plain UTF-8 is understood as well.
    """
    if value is None:
        return None
    try:
        return str(_text(unquote_to_bytes(value.encode("latin-1"))))
    except UnicodeEncodeError:
        return value


def _whole(raw: Any) -> Any:
    """The number in *raw* where it is one in plain digits; `int` alone would also take ``" 1_0"``."""
    text = raw.decode("latin-1") if isinstance(raw, bytes) else raw
    plain = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= len(str(MOST))
    return int(text) if plain else raw


def _is_name(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= LONGEST


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
