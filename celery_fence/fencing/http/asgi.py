"""A gate in front of an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from celery_fence.fencing.http.reception import STAMP, Reception, Refusal, ScopeOf
from celery_fence.fencing.token_gate import TokenGate

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


class AsgiTokenGate:
    """
    *application* behind *gate*, which is asked in a thread of the running asyncio loop.

    As `WsgiTokenGate`; what isn't HTTP (lifespan, websockets) is handed on unchecked.
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

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer the request, or hand it on."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        verdict = await asyncio.to_thread(
            self._reception.receive, scope["method"], scope["path"], _headers(scope["headers"])
        )
        if isinstance(verdict, Refusal):
            await _answer(send, verdict)
            return
        await self._application({**scope, STAMP: verdict}, receive, send)


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as WSGI has them: a name that comes twice has both values, so that neither is overlooked."""
    found: dict[str, str] = {}
    for name, value in ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw):
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


async def _answer(send: Send, refusal: Refusal) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers()]
    await send({"type": "http.response.start", "status": refusal.status.value, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body})
