"""A gate in front of a WSGI application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from celery_fence.fencing.http.reception import STAMP, Reception, Refusal, ScopeOf
from celery_fence.fencing.token_gate import TokenGate

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class WsgiTokenGate:
    """
    *application* behind *gate*.

    Only what writes is looked at: requests by another method than GET, HEAD, OPTIONS and TRACE.

    *required*: answer 400 to those without a token, instead of letting them pass
    unchecked. *scope_of* says, from method and path, which scope a request writes to:
    400 for a token of another one.
    """

    def __init__(
        self,
        application: Application,
        gate: TokenGate,
        *,
        required: bool = False,
        scope_of: ScopeOf | None = None,
    ) -> None:
        self._application = application
        self._reception = Reception(gate, required, scope_of)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer the request, or hand it on."""
        verdict = self._reception.receive(environ["REQUEST_METHOD"], _path(environ), _headers(environ))
        if isinstance(verdict, Refusal):
            start_response(f"{verdict.status.value} {verdict.status.phrase}", verdict.headers())
            return [verdict.body]
        return self._application({**environ, STAMP: verdict}, start_response)


def _path(environ: dict[str, Any]) -> str:
    """The path as people read it; WSGI gives it as Latin-1, byte by byte."""
    raw = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return str(raw.encode("latin-1").decode("utf-8", "replace"))


def _headers(environ: dict[str, Any]) -> dict[str, str]:
    """The request's headers by their names, as far as WSGI still knows these."""
    return {
        name.removeprefix("HTTP_").replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
