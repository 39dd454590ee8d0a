"""How long things may take: the limits of a TTL, and who may go below them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from celery_fence.task.given import seconds

if TYPE_CHECKING:
    from celery_fence.task.given import Given

SHORTEST_TTL: Final = 1.0
LONG_TTL: Final = 600.0


def allow_short_ttls(app: Any, shortest: float = 0.3) -> None:
    """Let *app* use a TTL down to *shortest* seconds, for tests: in production a pause loses the lease."""
    app._fence_shortest_ttl = shortest  # noqa: SLF001 - state hangs on the app


def shortest_ttl(app: Any) -> float:
    """The lower limit for a TTL of *app*, in seconds."""
    return float(getattr(app, "_fence_shortest_ttl", SHORTEST_TTL))


def checked_ttl(app: Any, given: Given) -> float:
    """A TTL within its limits; a long one is accepted, and warned about once for each place."""
    ttl = seconds(given, least=shortest_ttl(app))
    if ttl > LONG_TTL:
        _warn_once(
            app,
            f"{given.place} is {ttl:g} seconds: a killed worker keeps its key closed for that long. The "
            f"heartbeat keeps a lease for as long as its run lasts: {LONG_TTL:g} seconds are always enough.",
        )
    return ttl


def checked_max_hold(app: Any, given: Given) -> float | None:
    """None for no limit, or a number of seconds."""
    return None if given.value is None else seconds(given, least=shortest_ttl(app))


def _warn_once(app: Any, message: str) -> None:
    said: set[str] = vars(app).setdefault("_fence_warned", set())
    if message not in said:
        said.add(message)
        warnings.warn(message, stacklevel=2)
