"""The fence trigger as a part of your metadata, and its refusals as `StaleToken`."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    ExceptionContext,
    Integer,
    MetaData,
    String,
    Table,
    event,
    func,
)

from celery_fence.errors import ConfigError
from celery_fence.fencing.trigger import FenceTrigger
from celery_fence.fencing.trigger.definition import SIGHTINGS, TriggerMode, Verdict
from celery_fence.fencing.trigger.refusal import Refusal

TRIGGERS: Final = "celery_fence.triggers"
"""
Where a metadata's ``info`` keeps the triggers of its tables, by the table's key.

Not in the table's own: Alembic writes that into its migrations.
"""

COLUMNS: Final = ("last_fencing_token", "last_fencing_owner")


def fence_trigger(
    table: Any,
    *,
    mode: TriggerMode = "enforce",
    unfenced: Verdict = "refuse",
    deletes: Verdict = "allow",
) -> FenceTrigger:
    """
    Give *table* (a `Table`, or a mapped class) the trigger that refuses stale tokens.

    `create_all` makes it together with the table, and Alembic's autogenerate makes it for a
    table that is there (`celery_fence.fencing.sqlalchemy.alembic`). What the options mean is told
    in `celery_fence.fencing.trigger`.

    Raises:
        ConfigError: the table hasn't the two columns, or an option that there isn't.

    """
    made: Table = getattr(table, "__table__", table)
    missing = [column for column in COLUMNS if column not in made.columns]
    if missing:
        raise ConfigError(
            f"The fence trigger on {made.name!r} needs the columns {' and '.join(missing)}; FencedMixin has them."
        )
    trigger = FenceTrigger(made.name, made.schema, mode, unfenced, deletes)
    if trigger_of(made) is None:
        event.listen(made, "after_create", _create)
        event.listen(made, "before_drop", _drop)
    made.metadata.info.setdefault(TRIGGERS, {})[made.key] = trigger
    # Which the trigger's own statements would make, too: so it has to be there first.
    made.add_is_dependent_on(sightings_table(made.metadata))
    return trigger


def trigger_of(table: Table) -> FenceTrigger | None:
    """The trigger that *table* was given, or None."""
    triggers: dict[str, FenceTrigger] = table.metadata.info.get(TRIGGERS, {})
    return triggers.get(table.key)


def sightings_table(metadata: MetaData) -> Table:
    """The table in which triggers in mode ``shadow`` write down what they would have refused."""
    known = metadata.tables.get(SIGHTINGS)
    if known is not None:
        return known
    return Table(
        SIGHTINGS,
        metadata,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("table_name", String(255), nullable=False),
        Column("what", String(16), nullable=False),
        Column("token", BigInteger),
        Column("seen", BigInteger),
        Column("seen_at", DateTime, nullable=False, server_default=func.current_timestamp()),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def tell_trigger_refusals(engine: Engine) -> None:
    """
    Raise what fence triggers refuse on *engine* as `StaleToken` or `UnfencedWrite`, counted as any refused write.

    In the place of the `DBAPIError` that SQLAlchemy would raise, which stays its cause. For an
    async engine, give its ``sync_engine``.
    """
    event.listen(engine, "handle_error", _tell)


def _tell(context: ExceptionContext) -> None:
    refusal = Refusal.read(context.original_exception)
    if refusal is not None:
        raise refusal.told() from context.original_exception


def _create(table: Table, connection: Connection, **_: Any) -> None:
    trigger = trigger_of(table)
    for statement in trigger.create(connection.dialect.name) if trigger else ():
        connection.exec_driver_sql(statement)


def _drop(table: Table, connection: Connection, **_: Any) -> None:
    """What a dropped table takes along itself, and the function in PostgreSQL, which it doesn't."""
    trigger = trigger_of(table)
    for statement in trigger.drop(connection.dialect.name) if trigger else ():
        connection.exec_driver_sql(statement)
