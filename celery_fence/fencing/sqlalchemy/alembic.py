"""
The fence trigger in Alembic's migrations.

Import this module in ``env.py``; then migrations have

```python
def upgrade():
    op.create_fence_trigger("payouts", mode="shadow")


def downgrade():
    op.drop_fence_trigger("payouts")
```

and ``alembic revision --autogenerate`` writes them for tables that have a `fence_trigger`. The
table of the gates is an ordinary table of your metadata (`gates_table`).

A batch migration on SQLite makes the table anew and thereby loses its triggers: create them
again in the same migration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from alembic import util
from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations import MigrateOperation, Operations
from alembic.operations.ops import UpgradeOps
from sqlalchemy import MetaData, text

from celery_fence.fencing.sqlalchemy.trigger import trigger_of
from celery_fence.fencing.trigger import FenceTrigger
from celery_fence.fencing.trigger.definition import TriggerMode, Verdict, find

# After the tables. Until Alembic 1.18 there was only the order of registration.
LAST: dict[str, Any] = {"priority": util.DispatchPriority.LAST} if hasattr(util, "DispatchPriority") else {}

OPTIONS = {"schema": None, "mode": "enforce", "unfenced": "refuse", "deletes": "allow"}
"""The options of both operations, with what they are when they aren't written."""


class TriggerOperation(MigrateOperation):
    """What the two operations have in common: the trigger they are about."""

    def __init__(self, trigger: FenceTrigger) -> None:
        self.trigger = trigger

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """What ``alembic check`` shows."""
        return (self.__class__.__name__, self.trigger)


@Operations.register_operation("create_fence_trigger")
class CreateFenceTrigger(TriggerOperation):
    """``op.create_fence_trigger("payouts")``."""

    @classmethod
    def create_fence_trigger(
        cls,
        operations: Operations,
        table: str,
        *,
        schema: str | None = None,
        mode: TriggerMode = "enforce",
        unfenced: Verdict = "refuse",
        deletes: Verdict = "allow",
    ) -> None:
        """
        Make the trigger that refuses stale tokens on *table*, in the place of one that is there.

        The table has the columns ``last_fencing_token`` and ``last_fencing_owner`` by then. Raises
        `ConfigError` for an option that there isn't.
        """
        operations.invoke(cls(FenceTrigger(table, schema, mode, unfenced, deletes)))

    def reverse(self) -> DropFenceTrigger:
        """The operation that undoes it."""
        return DropFenceTrigger(self.trigger)


@Operations.register_operation("drop_fence_trigger")
class DropFenceTrigger(TriggerOperation):
    """``op.drop_fence_trigger("payouts")``."""

    @classmethod
    def drop_fence_trigger(
        cls,
        operations: Operations,
        table: str,
        *,
        schema: str | None = None,
        mode: TriggerMode = "enforce",
        unfenced: Verdict = "refuse",
        deletes: Verdict = "allow",
    ) -> None:
        """Drop the fence trigger of *table*, if it is there; the options say how it would be made again."""
        operations.invoke(cls(FenceTrigger(table, schema, mode, unfenced, deletes)))

    def reverse(self) -> CreateFenceTrigger:
        """The operation that undoes it."""
        return CreateFenceTrigger(self.trigger)


@Operations.implementation_for(CreateFenceTrigger)
def create(operations: Operations, operation: CreateFenceTrigger) -> None:
    """Run, or write into an SQL script, what makes the trigger."""
    for statement in operation.trigger.create(operations.get_context().dialect.name):
        operations.execute(statement)


@Operations.implementation_for(DropFenceTrigger)
def drop(operations: Operations, operation: DropFenceTrigger) -> None:
    """Run, or write into an SQL script, what drops it."""
    for statement in operation.trigger.drop(operations.get_context().dialect.name):
        operations.execute(statement)


@renderers.dispatch_for(CreateFenceTrigger)
def render_create(_: AutogenContext, operation: CreateFenceTrigger) -> str:
    """The line in the migration's file."""
    return f"op.create_fence_trigger({_arguments(operation.trigger)})"


@renderers.dispatch_for(DropFenceTrigger)
def render_drop(_: AutogenContext, operation: DropFenceTrigger) -> str:
    """The line in the migration's file."""
    return f"op.drop_fence_trigger({_arguments(operation.trigger)})"


@comparators.dispatch_for("schema", **LAST)
def compare(context: AutogenContext, operations: UpgradeOps, schemas: Collection[str | None]) -> None:
    """
    Find what is to be created, dropped or replaced.

    Drops come first and creations last: the table and its columns are there in between,
    and in the downgrade, which runs backwards, too.
    """
    metadata = context.metadata
    wanted = {
        (trigger.schema, trigger.table): trigger
        for schema in schemas
        for trigger in _declared(metadata, schema)
    }
    there = {
        (trigger.schema, trigger.table): trigger
        for schema in schemas
        for trigger in _existing(context, schema)
    }
    for key, trigger in there.items():
        if wanted.get(key) != trigger:
            operations.ops.insert(0, DropFenceTrigger(trigger))
    for key, trigger in wanted.items():
        if there.get(key) != trigger:
            operations.ops.append(CreateFenceTrigger(trigger))


def _declared(metadata: Any, schema: str | None) -> Iterator[FenceTrigger]:
    every: list[MetaData] = list(metadata) if isinstance(metadata, list | tuple) else [metadata]
    for table in (table for each in every for table in each.tables.values()):
        trigger = trigger_of(table)
        if trigger is not None and trigger.schema == schema:
            yield trigger


def _existing(context: AutogenContext, schema: str | None) -> Iterator[FenceTrigger]:
    connection = context.connection
    if connection is None:
        return
    found = connection.execute(text(find(connection.dialect.name)), {"schema": schema})
    bodies = [(str(table), str(body)) for table, body in found]
    for trigger in FenceTrigger.found(bodies, schema):
        if context.run_name_filters(trigger.table, "table", {"schema_name": schema}):
            yield trigger


def _arguments(trigger: FenceTrigger) -> str:
    options = {name: getattr(trigger, name) for name in OPTIONS}
    return ", ".join(
        [
            repr(trigger.table),
            *(f"{name}={value!r}" for name, value in options.items() if value != OPTIONS[name]),
        ]
    )
