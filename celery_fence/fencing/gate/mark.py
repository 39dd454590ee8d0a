"""The high-water mark of a scope: what is asked of the database, and what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

TABLE: Final = "fence_gates"

LONGEST: Final = 255
"""Bytes of a scope that the column keeps as they are."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The highest token that has passed a gate, and its owner; None where that isn't known."""

    token: int
    owner: str | None = None

    def is_stale_after(self, seen: Mark) -> bool:
        """
        Whether this one may no longer pass where *seen* has passed.

        An equal token of another owner is stale. It passes where one of the two
        owners isn't known: a key issues each token once, except after its store
        lost the counter and its clock went back.
        """
        known = self.owner is not None and seen.owner is not None
        return self.token < seen.token or (self.token == seen.token and known and self.owner != seen.owner)

    def raised_to(self, mark: Mark) -> Mark:
        """The mark that stands once *mark* came by: that one unless it is stale; a known owner is never forgotten."""
        forgets = mark.token == self.token and mark.owner is None
        return self if forgets or mark.is_stale_after(self) else mark


@dataclass(frozen=True, slots=True)
class Wish:
    """A writer's wish to pass: the *scope* as the column keeps it, and the mark it would leave."""

    scope: str
    mark: Mark

    @property
    def parameters(self) -> dict[str, Any]:
        """The values by the names that the statements have for them."""
        return {"scope": self.scope, "token": self.mark.token, "owner": self.mark.owner}


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What became of a wish: *seen* is the mark that the gate has now, with its row locked.

    The wish passed where that is its own mark. *moved* says whether it was moved by
    this statement; None where the statement can't tell, which is only when `once` isn't asked.
    """

    seen: Mark
    moved: bool | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a driver says of one statement; *rowcount* and *lastrowid* as in PEP 249."""

    rows: Sequence[Sequence[Any]]
    rowcount: int
    lastrowid: int | None

    def mark(self) -> Mark | None:
        """The mark in the first row, if there is a row."""
        return Mark(int(self.rows[0][0]), self.rows[0][1]) if self.rows else None


class Ask(Protocol):
    """Runs one statement, with ``:name`` parameters, in the caller's transaction: one round trip."""

    def __call__(self, sql: str, parameters: Mapping[str, Any]) -> Answer:
        """Errors of the driver come out as they are."""


class Dialect(Protocol):
    """What each of the modules `postgresql`, `mysql` and `sqlite` offers."""

    DDL: str

    def move(self, ask: Ask, wish: Wish, *, once: bool) -> Outcome:
        """Lock the scope's row and move its mark up to the wish's, unless it is higher already."""


def kept_scope(scope: str) -> str:
    """
    *scope* as the column keeps it: itself, or a readable head with a digest.

    The latter where it has more than 255 bytes, or something that a database would
    ignore or refuse: a space at its end, a NUL, half a surrogate pair.
    """
    raw = scope.encode("utf-8", "surrogatepass")
    plain = scope.encode("utf-8", "replace").replace(b"\0", b"?")
    if raw == plain and len(raw) <= LONGEST and not raw.endswith(b" "):
        return scope
    return f"{plain[: LONGEST - 65].decode('utf-8', 'ignore')}~{hashlib.sha256(raw).hexdigest()}"
