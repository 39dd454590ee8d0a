"""A trigger's refusal, out of whatever error the driver makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from celery_fence.errors import FenceError, StaleToken, UnfencedWrite
from celery_fence.fencing.writer import Shown, refuse, writer_of

TEXT: Final = re.compile(
    r"(?:\(\d+, ['\"]|<class '[\w.]+'>: )?"
    r"celery_fence: (?P<what>stale write to|unfenced write to|delete from) (?P<table>.+?) refused"
    r"(?: \((?:token -?\d+, )?seen (?P<seen>-?\d+)\)?)?"
)
"""The beginning of the message, with what pymysql and SQLAlchemy's asyncpg put before it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a fence trigger said: *what* (stale, unfenced or delete) on *table*; SQLite doesn't say *seen*."""

    what: str
    table: str
    seen: int | None

    @classmethod
    def read(cls, error: BaseException) -> Refusal | None:
        """The refusal that *error* tells of, or None; for errors of any driver, and SQLAlchemy's around them."""
        # Only what the database itself says: SQLAlchemy's text has the statement's parameters, which may be anything.
        said = TEXT.match(str(getattr(error, "orig", None) or error))
        if said is None:
            return None
        seen = None if said["seen"] is None else int(said["seen"])
        return cls(said["what"].split()[0], said["table"], seen)

    def told(self, lease: Shown | None = None) -> FenceError:
        """
        Tell of it as of any refused write, and answer the error to be raised.

        `StaleToken` for a stale write; `UnfencedWrite` for the others, which nobody
        is told of. *lease* is the one it was written under, else the innermost here.
        """
        if self.what != "stale":
            what = "An unfenced write" if self.what == "unfenced" else f"A {self.what}"
            return UnfencedWrite(
                f"{what} was refused by the fence trigger on "
                f"{self.table!r}. Set last_fencing_token and last_fencing_owner to those of the lease, or use a guard."
            )
        try:
            writer = writer_of(lease, mode="enforce")
            refuse(writer, scope=writer.key, seen=self.seen, what=f"UPDATE {self.table}")
        except StaleToken as stale:
            return stale
        except UnfencedWrite:
            pass  # written under no lease that is known here: there is nobody to tell
        return StaleToken(
            f"The fence trigger on {self.table!r} refused a stale token. Roll back, stop, and write nothing more.",
            scope=self.table,
            seen=self.seen,
        )


@contextmanager
def trigger_refusals(lease: Shown | None = None) -> Iterator[None]:
    """
    Raise and count what a fence trigger refuses within the block as other guards do.

    For raw SQL, through a driver, SQLAlchemy or Django. Every other error comes out as it is.

    Raises:
        StaleToken: the trigger refused a stale token.
        UnfencedWrite: it refused a write that shows none.

    """
    try:
        yield
    except Exception as error:
        refusal = Refusal.read(error)
        if refusal is None:
            raise
        raise refusal.told(lease) from error
