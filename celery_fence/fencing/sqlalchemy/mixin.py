"""The mixin that fences the rows of a mapped class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import BigInteger, Table, event
from sqlalchemy.orm import Mapped, Mapper, declared_attr, mapped_column

from celery_fence.errors import ConfigError
from celery_fence.fencing.sqlalchemy import stamping
from celery_fence.fencing.sqlalchemy.hooks import install
from celery_fence.fencing.sqlalchemy.rule import (
    OWNER,
    TOKEN,
    keep_part,
    keep_rule,
    owner_type,
    rule_of,
    rule_over,
)
from celery_fence.fencing.writer import Mode


class FencedMixin:
    """
    Fences the rows of a mapped class: a stale run can't UPDATE or DELETE them.

    `__fence_key__` is the key that a row belongs to, a template over the class's
    column attributes. A write needs the lease on that very key: one that the code is
    under, or one that was handed to the session by `fence`. It carries the
    comparison in its own statement, and the row keeps token and owner. A new row may
    be written by anybody, and by the transaction that made it for as long as that lasts.

    ```python
    class Payout(FencedMixin, Base):
        __tablename__ = "payouts"
        __fence_key__ = "payout:<id>"
    ```

    A write is refused with `StaleToken`, `ScopeMismatch`, `UnfencedWrite`, `RowGone` or
    `RowChanged`; roll back then, as after any failed flush. `__fence_mode__`
    ``"shadow"`` lets all pass and tells what it would have refused.
    """

    __fence_key__: ClassVar[str]
    __fence_mode__: ClassVar[Mode | None] = None

    if TYPE_CHECKING:
        last_fencing_token: Mapped[int]
        """The token of the last fenced write; 0 before the first."""

        last_fencing_owner: Mapped[str | None]
        """The owner of the lease of the last fenced write."""

    else:  # without annotations, so that a class that is mapped as a dataclass doesn't ask for a dataclass here

        @declared_attr
        def last_fencing_token(cls):  # noqa: ANN201, N805 - declared above
            """See above."""
            return mapped_column(
                TOKEN, BigInteger, nullable=False, insert_default=0, server_default="0", sort_order=990
            )

        @declared_attr
        def last_fencing_owner(cls):  # noqa: ANN201, N805 - declared above
            """See above."""
            return mapped_column(OWNER, owner_type(), nullable=True, sort_order=991)


def _fence_mapper(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Note the rule of a class as it is mapped, and that its other tables go with the one that has the token."""
    table: Any = mapper.c[TOKEN].table
    if rule_of(table) is None or mapper.inherits is None:
        _check_place(mapper, cls)
        names, whose = _column_names(mapper, table), f"__fence_key__ of {cls.__name__}"
        keep_rule(table, rule_over(table, _key_of(cls), names, cls.__fence_mode__, whose=whose))
    for part in mapper.tables:
        if isinstance(part, Table) and part is not table:
            keep_part(part, table)
    install()


def _key_of(cls: type[Any]) -> str:
    key = getattr(cls, "__fence_key__", None)
    if not isinstance(key, str):
        raise ConfigError(
            f"{cls.__name__} has the FencedMixin and needs __fence_key__, the key its rows belong to, such as "
            f"'{cls.__name__.lower()}:<id>', with the names of column attributes in it."
        )
    return key


def _check_place(mapper: Mapper[Any], cls: type[Any]) -> None:
    if mapper.inherits is not None and not mapper.concrete:
        raise ConfigError(
            f"{cls.__name__} inherits from {mapper.inherits.class_.__name__}, which isn't fenced: give the FencedMixin "
            "to the base class. The rows of both are written together, and half a row can't be fenced."
        )


def _column_names(mapper: Mapper[Any], table: Any) -> dict[str, str]:
    """The attributes that a key may name, with the columns of *table* they stand for."""
    return {name: column.key for name, column in mapper.c.items() if column.table is table}


event.listen(FencedMixin, "after_mapper_constructed", _fence_mapper, propagate=True)
event.listen(FencedMixin, "before_insert", stamping.before_insert, propagate=True)
event.listen(FencedMixin, "after_insert", stamping.after_insert, propagate=True)
event.listen(FencedMixin, "before_update", stamping.before_update, propagate=True)
event.listen(FencedMixin, "before_delete", stamping.before_delete, propagate=True)
