"""What a checker reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Violation:
    """
    A promise that was broken, for certain.

    *invariant* is its number in the plan (``"I1"``, ``"G1"``), *text* one sentence for
    people, *at* the moment on the history's clock (0 where only the ledger tells), *facts* what to look up.
    """

    invariant: str
    text: str
    at: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"
