"""One row of the records: what is asked of the database, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from celery_fence.fencing.gate.mark import Answer

TABLE: Final = "fence_records"

WHOLE: Final = ""
"""The step of a record that is about a whole run."""

COLUMNS: Final = "record_key, step, lock_key, token, owner, claimed_at, done_at, LENGTH(result)"
READ: Final = f"SELECT {COLUMNS}, result FROM {TABLE} WHERE record_key = :record AND step = :step"  # noqa: S608 - constants

PAGE: Final = 500

LIST: Final = f"""
SELECT {COLUMNS} FROM {TABLE}
WHERE record_key > :record OR (record_key = :record AND step > :step)
ORDER BY record_key, step LIMIT {PAGE}"""  # noqa: S608 - constants
"""The records after a given one, in the order of their keys, without their results."""

DELETE: Final = f"DELETE FROM {TABLE} WHERE record_key = :record"  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class Wish:
    """A run's wish to do *step* of the work of *record* under its lease on *lock_key*; as the columns keep them."""

    record: str
    step: str
    lock_key: str
    token: int
    owner: str

    @property
    def name(self) -> dict[str, Any]:
        """The parameters that say which row it is."""
        return {"record": self.record, "step": self.step}

    @property
    def writer(self) -> dict[str, Any]:
        """The parameters that say who claims it."""
        return {"token": self.token, "owner": self.owner}

    @property
    def parameters(self) -> dict[str, Any]:
        """All of them, by the names that the statements have for them."""
        return {**self.name, "lock_key": self.lock_key, **self.writer}


@dataclass(frozen=True, slots=True)
class Record:
    """
    What is kept of one *key*, or of one *step* of it (empty for the whole).

    *owner*, with *token*, claimed it under the lease on *lock_key* at *claimed*; *done* is
    when the work was finished, None for a claim. Both are the database's clock, in whole
    seconds since the epoch. *size* is the characters of the encoded result, which is *result*,
    None where it wasn't read. Keys and steps of more than 255 bytes end with a digest.
    """

    key: str
    step: str
    lock_key: str
    token: int
    owner: str
    claimed: int
    done: int | None = None
    size: int | None = None
    result: str | None = None

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """The record of a row of `READ` or `LIST`."""
        key, step, lock_key, token, owner, claimed, done, size, *rest = row
        return cls(key, step, lock_key, int(token), owner, int(claimed), _number(done), _number(size), *rest)

    def is_claim_of(self, wish: Wish) -> bool:
        """Whether this is an open claim of the very run that has the *wish*."""
        mine = (wish.lock_key, wish.token, wish.owner)
        return self.done is None and (self.lock_key, self.token, self.owner) == mine


class Dialect(Protocol):
    """What each of the modules `postgresql`, `mysql` and `sqlite` offers: statements, and how to read one's answer."""

    DDL: str
    CLAIM: str
    """Claims the row of a wish if nobody has it, or takes it over from a lower token; locks it in any case."""
    FOUND: str
    """Reads the row, as it was committed last, after `CLAIM` has locked it."""
    COMPLETE: str
    """Says that a claim of this token and owner is done."""
    DELETE_OLD: str
    """Deletes what was done, or claimed and left, more than so many seconds ago."""

    def has_claimed(self, answer: Answer) -> bool:
        """Whether *answer* says that `CLAIM` has made the row its own; no may also mean that it doesn't say."""


def declaring(*, exact: str = "", text: str = "TEXT", options: str = "") -> str:
    """`Dialect.DDL`, with the database's words for texts that are compared exactly, long ones, and the whole table."""
    return f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
    record_key VARCHAR(255){exact} NOT NULL,
    step VARCHAR(255){exact} NOT NULL,
    lock_key VARCHAR(255){exact} NOT NULL,
    token BIGINT NOT NULL,
    owner VARCHAR(64){exact} NOT NULL,
    claimed_at BIGINT NOT NULL,
    done_at BIGINT,
    result {text}{exact},
    PRIMARY KEY (record_key, step)
){options}"""


def completing(now: str) -> str:
    """`Dialect.COMPLETE`, with the database's words for the time in seconds."""
    return f"""
UPDATE {TABLE} SET done_at = {now}, result = :result
WHERE record_key = :record AND step = :step AND done_at IS NULL AND token = :token AND owner = :owner"""  # noqa: S608 - constants


def deleting_old(now: str) -> str:
    """`Dialect.DELETE_OLD`, with the database's words for the time in seconds."""
    return f"DELETE FROM {TABLE} WHERE COALESCE(done_at, claimed_at) < {now} - :seconds"  # noqa: S608 - constants


def _number(given: Any) -> int | None:
    return None if given is None else int(given)
