"""
The condition that a fenced UPDATE or DELETE carries in itself.

A row lets a writer pass whose token is greater than the row's, and the very writer
(token and owner) who wrote it last. Where it is known which token the row had when it
was read, only that one will do: a holder before us who commits late would otherwise
have his change overwritten by what we made of the row as it was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, and_, bindparam, or_

from celery_fence.fencing.sqlalchemy.rule import OWNER, TOKEN
from celery_fence.fencing.writer import Writer

FLOOR: Final = "celery_fence_floor"
CEILING: Final = "celery_fence_ceiling"
OWN: Final = "celery_fence_token"
OWN_OWNER: Final = "celery_fence_owner"

LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Mark:
    """
    On whose behalf one row is written; *loaded* is the token it had when it was read, if that is known.

    Without a *writer* the row is written as it would be without a fence.
    """

    writer: Writer | None
    scope: str = ""
    loaded: int | None = None
    missing: bool = False
    """The row wasn't there when it was looked for: nothing may be written."""

    @property
    def compares(self) -> bool:
        """Whether the writer's token is compared in the statement; in mode ``shadow`` it isn't."""
        return self.writer is not None and self.writer.enforces

    def binds(self) -> dict[str, Any]:
        """The values of the parameters of `row_condition` for this row."""
        if self.missing:
            return {FLOOR: 0, CEILING: -1, OWN: -1, OWN_OWNER: None}
        if self.writer is None or not self.compares:
            return {FLOOR: -LARGEST, CEILING: LARGEST, OWN: -1, OWN_OWNER: None}
        own = self.writer.token or 0
        floor, ceiling = (0, own - 1) if self.loaded is None else (self.loaded, min(self.loaded, own - 1))
        return {FLOOR: floor, CEILING: ceiling, OWN: own, OWN_OWNER: self.writer.owner}


def row_condition(table: Table) -> ColumnElement[bool]:
    """The condition for rows that are written by primary key, each with the `Mark.binds` of its own."""
    token, owner = table.c[TOKEN], table.c[OWNER]
    return or_(
        token.between(bindparam(FLOOR, type_=token.type), bindparam(CEILING, type_=token.type)),
        and_(
            token == bindparam(OWN, type_=token.type),
            owner == bindparam(OWN_OWNER, type_=owner.type),
        ),
    )


def condition(table: Any, writer: Writer) -> ColumnElement[bool]:
    """The condition for a statement that is all *writer*'s."""
    token, owner = table.c[TOKEN], table.c[OWNER]
    return or_(token < writer.token, and_(token == writer.token, owner == writer.owner))


def stale_rows(table: Any, writer: Writer) -> ColumnElement[bool]:
    """The opposite of `condition`, also where a row has no owner."""
    token, owner = table.c[TOKEN], table.c[OWNER]
    other = or_(owner.is_(None), owner != writer.owner)
    return or_(token > writer.token, and_(token == writer.token, other))
