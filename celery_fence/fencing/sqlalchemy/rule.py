"""Which tables are fenced, under which key, and where their rows keep the token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import BigInteger, Column, MetaData, String, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.expression import FromClause

from celery_fence.errors import ConfigError
from celery_fence.fencing.writer import LONGEST_OWNER, Mode, checked_mode
from celery_fence.locking.keys import names_in_template, render_template

TOKEN: Final = "last_fencing_token"  # noqa: S105 - a column's name
OWNER: Final = "last_fencing_owner"

RULES: Final = "celery_fence.rules"
"""
Where the `info` of a metadata keeps the rules of its tables, by the tables' keys.

Not that of the tables: Alembic writes it into its migrations.
"""

PARTS: Final = "celery_fence.parts"
"""Where it keeps, for the table of a joined subclass, the table that has the token."""

EXACT: Final = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}


@dataclass(frozen=True, slots=True)
class Rule:
    """
    How the rows of one table are fenced.

    *template* makes a row's key from *columns*, the names of its placeholders and the
    keys of the columns they stand for; None where whoever writes says which key it is.
    *mode* is that of the table, None: that of the task.
    """

    template: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    mode: Mode | None = None

    def key_of(self, values: Mapping[str, Any]) -> str:
        """The key of a row with these *values* by placeholder. `LockKeyError` where one can't be part of a key."""
        return render_template(self.template or "", values)

    def key_columns(self, table: FromClause) -> list[Any]:
        """The columns of *table* that make the key, in the order of the placeholders."""
        return [table.c[name] for name in self.columns.values()]

    def key_of_row(self, values: Any) -> str:
        """The key of a row whose `key_columns` have these *values*."""
        return self.key_of(dict(zip(self.columns, values, strict=True)))


def rule_of(table: Any) -> Rule | None:
    """The rule of *table*, or None for one that isn't fenced."""
    found = _kept(RULES, table)
    return found if isinstance(found, Rule) else None


def whole_of(table: Any) -> Table | None:
    """The fenced table of which *table* keeps the rest of the rows, in joined-table inheritance."""
    found = _kept(PARTS, table)
    return found if isinstance(found, Table) else None


def keep_rule(table: Table, rule: Rule) -> None:
    """*table* is fenced by *rule* from now on."""
    table.metadata.info.setdefault(RULES, {})[table.key] = rule


def keep_part(part: Table, whole: Table) -> None:
    """The rows of *part* are the rest of those of *whole*."""
    part.metadata.info.setdefault(PARTS, {})[part.key] = whole


def _kept(name: str, table: Any) -> Any:
    metadata = getattr(table, "metadata", None)
    kept = metadata.info.get(name) if isinstance(metadata, MetaData) else None
    return kept.get(table.key) if kept else None


def fence_table(table: Table, key: str | None = None, *, mode: Mode | None = None) -> Table:
    """
    Fence a Core *table* that has the columns of `fence_columns`; answers the table.

    *key* is a template over its columns, such as ``"payout:<id>"``. From then on, each
    UPDATE and DELETE of its rows in this process needs the lease on their key, as with
    `FencedMixin`. Without a *key* the rows belong to whatever key a writer has.

    Raises:
        ConfigError: the table has no such columns, or *key* can't be right.

    """
    from celery_fence.fencing.sqlalchemy.hooks import install

    names = {name: name for name in table.c.keys()}  # noqa: SIM118 - a collection of columns isn't a dict
    keep_rule(table, rule_over(table, key, names, mode, whose=f"The key of fence_table({table})"))
    install()
    return table


def rule_over(
    table: FromClause,
    key: str | None,
    names: Mapping[str, str],
    mode: str | None,
    *,
    whose: str = "The fence key",
) -> Rule:
    """
    The rule of a *table* for the template *key*; *names* are those a placeholder may have, with their columns.

    A `ConfigError` about the key begins with *whose* it is.
    """
    for name in (TOKEN, OWNER):
        if name not in table.c:
            raise ConfigError(
                f"The table {table!s} has no column {name!r}, which a guard needs. Give its model the "
                "FencedMixin, or add *fence_columns() to the table."
            )
    if key is None:
        return Rule(mode=checked_mode(mode))
    wanted = _names_in(key, whose)
    for name in wanted:
        if name not in names:
            raise ConfigError(
                f"{whose}, {key!r} for {table!s}, has a placeholder <{name}>, which is none of its columns: "
                f"{', '.join(names)}."
            )
    return Rule(key, {name: names[name] for name in wanted}, checked_mode(mode))


def _names_in(key: str, whose: str) -> tuple[str, ...]:
    try:
        return names_in_template(key)
    except ConfigError as error:
        why = str(error).partition(f"{key!r}: ")[2] or str(error)
        raise ConfigError(f"{whose}, {key!r}: {why}") from error


def fence_columns() -> tuple[Column[int], Column[str]]:
    """The two columns in which a row of a Core table keeps the token and owner of its last fenced write."""
    return (
        Column(TOKEN, BigInteger, nullable=False, default=0, server_default="0"),
        Column(OWNER, owner_type(), nullable=True),
    )


def owner_type() -> String:
    """Text of 64 characters that is compared exactly, on MySQL too."""
    return String(LONGEST_OWNER).with_variant(mysql.VARCHAR(LONGEST_OWNER, **EXACT), "mysql", "mariadb")
