"""What a fence trigger is to do, and the statements that make and drop it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self, get_args

from celery_fence.errors import ConfigError

TriggerMode = Literal["enforce", "shadow"]
Verdict = Literal["refuse", "allow"]

SIGHTINGS: Final = "fence_sightings"
LONGEST_NAME: Final = 50
"""Characters of a trigger's name before its ending; PostgreSQL keeps 63 bytes, MySQL 64 characters."""

MARK: Final = re.compile(r"celery_fence trigger mode=(\w+) unfenced=(\w+) deletes=(\w+)")


@dataclass(frozen=True, slots=True)
class FenceTrigger:
    """
    A trigger on *table* that refuses stale tokens; see the package for what it does.

    Raises:
        ConfigError: an option that there isn't.

    """

    table: str
    schema: str | None = None
    mode: TriggerMode = "enforce"
    unfenced: Verdict = "refuse"
    deletes: Verdict = "allow"

    def __post_init__(self) -> None:
        for option, value, known in (
            ("mode", self.mode, get_args(TriggerMode)),
            ("unfenced", self.unfenced, get_args(Verdict)),
            ("deletes", self.deletes, get_args(Verdict)),
        ):
            if value not in known:
                choices = " or ".join(map(repr, known))
                raise ConfigError(
                    f"Fence trigger on {self.table!r}: {option}={value!r}, but it is either {choices}."
                )

    @property
    def name(self) -> str:
        """What the names of its objects in the database begin with."""
        name = f"fence_{self.table}"
        if len(name.encode()) <= LONGEST_NAME:
            return name
        cut = name.encode()[: LONGEST_NAME - 9].decode("utf-8", "ignore")
        return f"{cut}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    @property
    def mark(self) -> str:
        """The comment in its body by which it is found again."""
        return f"/* celery_fence trigger mode={self.mode} unfenced={self.unfenced} deletes={self.deletes} */"

    def create(self, dialect: str) -> list[str]:
        """
        The statements that make it, to be run one by one; they replace one that is there.

        *dialect* is ``postgresql``, ``mysql``, ``mariadb`` or ``sqlite``; `ConfigError` for others.
        The statements have no ``%`` and nothing that reads as a ``:parameter``.
        """
        made = _dialect(dialect)
        return [_tidy(sql) for sql in (made.SIGHTINGS_DDL, *made.drop(self), *made.create(self))]

    def drop(self, dialect: str) -> list[str]:
        """The statements that drop it, if it is there; the table of sightings stays."""
        return [_tidy(sql) for sql in _dialect(dialect).drop(self)]

    @classmethod
    def found(cls, bodies: Iterable[tuple[str, str]], schema: str | None = None) -> Iterator[Self]:
        """The fence triggers among the triggers of a database: (table, body), as `find` reads them."""
        seen = set()
        for table, body in bodies:
            mark = MARK.search(body)
            if mark is not None and table not in seen:
                seen.add(table)
                yield cls(table, schema, *mark.groups())  # type: ignore[arg-type]


class TriggerDialect(Protocol):
    """What each of the modules `postgresql`, `mysql` and `sqlite` offers."""

    SIGHTINGS_DDL: str
    FIND: str

    def create(self, trigger: FenceTrigger) -> list[str]:
        """The statements that make what isn't there."""

    def drop(self, trigger: FenceTrigger) -> list[str]:
        """The statements that drop it, if it is there."""


def find(dialect: str) -> str:
    """
    The query for the table and body of each trigger in the schema ``:schema``.

    Where that is NULL, the connection's own schema.
    """
    return _tidy(_dialect(dialect).FIND)


def sighting(trigger: FenceTrigger, what: str) -> str:
    """The statement, of any dialect and without its end, that writes down what would have been refused."""
    token = "NEW.last_fencing_token" if what == "stale" else "NULL"
    into = f"INSERT INTO {SIGHTINGS} (table_name, what, token, seen)"
    return f"{into} SELECT {literal(trigger.table)}, '{what}', {token}, OLD.last_fencing_token"


def literal(text: str) -> str:
    """*text* as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _dialect(name: str) -> TriggerDialect:
    from celery_fence.fencing.trigger import mysql, postgresql, sqlite

    dialects: dict[str, TriggerDialect] = {
        "postgresql": postgresql,
        "mysql": mysql,
        "mariadb": mysql,
        "sqlite": sqlite,
    }
    if name not in dialects:
        raise ConfigError(
            f"There is a fence trigger for PostgreSQL, MySQL, MariaDB and SQLite, not for {name!r}."
        )
    return dialects[name]


def _tidy(sql: str) -> str:
    """Without the empty lines that an option left."""
    return "\n".join(line for line in sql.splitlines() if line.strip())
