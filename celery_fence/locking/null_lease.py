"""What stands in for a lease where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery_fence.locking.events import unheard

if TYPE_CHECKING:
    from celery_fence.locking.events import Event


class NullLease:
    """Stands in where a body runs without a lease (outage policy ``run``): `check` passes, the token is None."""

    __slots__ = ("emit", "source")

    key = None
    token = None
    owner = None
    ttl = math.inf
    trusted_for = math.inf
    lost = False

    def __init__(self, source: Any = None, emit: Callable[[Event], None] = unheard) -> None:
        self.source = source
        self.emit = emit

    def check(self) -> None:
        """Pass: there is nothing to lose."""

    def verify(self) -> None:
        """Pass: there is nothing to ask for."""

    def headers(self) -> dict[str, str]:
        """No headers: there is no token."""
        return {}

    def message_headers(self) -> dict[str, Any]:
        """No headers: there is no token."""
        return {}

    def __repr__(self) -> str:
        return "<NullLease>"
