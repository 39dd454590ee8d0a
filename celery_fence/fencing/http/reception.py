"""What becomes of a request, for WSGI and ASGI alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from celery_fence.errors import MalformedStamp, StaleToken
from celery_fence.fencing.mismatch import is_unescaped
from celery_fence.fencing.stamp import HTTP_SCOPE, HTTP_TOKEN, Stamp
from celery_fence.fencing.token_gate import TokenGate

STAMP = "celery_fence.stamp"
"""Where the application finds the stamp of its request."""

READING = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that write nothing, so nothing is asked of them."""

ScopeOf = Callable[[str, str], str | None]
"""From the method and the path of a request to the scope that it writes to; None where any will do."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that doesn't reach the application: a problem in JSON (RFC 9457)."""

    status: HTTPStatus
    title: str
    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """What the caller reads."""
        problem = {"title": self.title, "status": self.status.value, "detail": self.detail, **self.facts}
        return json.dumps(problem).encode()

    def headers(self) -> list[tuple[str, str]]:
        """What describes the body."""
        return [("Content-Type", "application/problem+json"), ("Content-Length", str(len(self.body)))]


@dataclass(frozen=True, slots=True)
class Reception:
    """
    Asks *gate* about the requests that write.

    *required*: refuse those without a token, instead of letting them pass unchecked.
    *scope_of*: refuse those whose token is for another scope than they write to.
    """

    gate: TokenGate
    required: bool = False
    scope_of: ScopeOf | None = None

    def receive(self, method: str, path: str, headers: Mapping[str, str]) -> Stamp | Refusal | None:
        """
        The stamp of a request that may pass (None without one), or the answer to one that may not.

        One call of the gate's store, whose errors come through.
        """
        if method.upper() in READING:
            return None
        try:
            stamp = Stamp.read_http(headers)
        except MalformedStamp as error:
            return Refusal(HTTPStatus.BAD_REQUEST, "Malformed fencing headers", str(error))
        if stamp is None:
            return self._without()
        return self._other_scope(stamp, method, path) or self._past_gate(stamp, method, path)

    def _without(self) -> Refusal | None:
        if not self.required:
            return None
        detail = (
            f"This service writes only for callers that send {HTTP_TOKEN} and {HTTP_SCOPE} (lease.headers())."
        )
        return Refusal(HTTPStatus.BAD_REQUEST, "Fencing headers required", detail)

    def _other_scope(self, stamp: Stamp, method: str, path: str) -> Refusal | None:
        scope = self.scope_of(method, path) if self.scope_of is not None else None
        if scope is None or scope == stamp.scope:
            return None
        detail = "The token is for another scope than the one that this request writes to; take that lease."
        if is_unescaped(scope, stamp.scope):
            detail = (
                "The service expects the key before escaping. Its scope_of has to percent-escape what stands for a "
                "placeholder, as the caller's key does."
            )
        facts = {"scope": stamp.scope, "expected_scope": scope}
        return Refusal(HTTPStatus.BAD_REQUEST, "Fencing scope mismatch", detail, facts)

    def _past_gate(self, stamp: Stamp, method: str, path: str) -> Stamp | Refusal:
        try:
            self.gate.check(stamp, what=f"{method} {path}")
        except StaleToken as error:
            detail = "A newer holder of the lease has been here. Stop; don't send this request again."
            facts = {"scope": error.scope, "token": error.token, "seen": error.seen}
            return Refusal(HTTPStatus.CONFLICT, "Stale fencing token", detail, facts)
        return stamp
