"""
Operations for Django's migrations.

```python
operations = [
    CreateFenceGates(),
    CreateFenceRecords(),
    AddFencingColumns("Payout"),
    CreateFenceTrigger("Payout", mode="shadow"),
]
```

Each can be undone by ``migrate`` backwards. On SQLite, Django alters a table by making it anew,
and the new one has no triggers: put `CreateFenceTrigger` behind the operation that alters it, too.
"""

# ruff: noqa: ARG002 - Django hands everything to each method

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.migrations.operations.base import Operation

from celery_fence.fencing.django.models import owner_field, token_field
from celery_fence.fencing.gate import gate_ddl, mark
from celery_fence.fencing.idempotency import record, record_ddl
from celery_fence.fencing.trigger import FenceTrigger
from celery_fence.fencing.trigger.definition import TriggerMode, Verdict


class CreateTable(Operation):
    """Make a table of celery-fence's own, where it isn't there; undone, it goes with all that is in it."""

    table: str
    ddl: Callable[[str], str]
    of: str

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No model has it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make it."""
        if _allowed(schema_editor, app_label):
            schema_editor.execute(type(self).ddl(schema_editor.connection.vendor), params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop it."""
        if _allowed(schema_editor, app_label):
            schema_editor.execute(f"DROP TABLE IF EXISTS {self.table}", params=None)

    def describe(self) -> str:
        """What ``migrate`` says."""
        return f"Create the table of the {self.of}"


class CreateFenceGates(CreateTable):
    """Make the table of the scope gates."""

    table = mark.TABLE
    ddl = staticmethod(gate_ddl)
    of = "scope gates"


class CreateFenceRecords(CreateTable):
    """Make the table of the idempotency records."""

    table = record.TABLE
    ddl = staticmethod(record_ddl)
    of = "idempotency records"


class OnModel(Operation):
    """An operation on the table of one model."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The model stays as it is."""

    def table(self, app_label: str, schema_editor: Any, state: Any) -> str | None:
        """The model's table; None where a router keeps this migration from the database."""
        model = state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return None
        table: str = model._meta.db_table  # noqa: SLF001 - documented by Django
        return table


class AddFencingColumns(OnModel):
    """
    Add the two columns of `FencedModel` to a model's table.

    As Django's AddField would, but the database keeps the default of 0: processes that
    don't know the columns yet can go on inserting.
    """

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The model has the fields of `FencedModel`."""
        for name, field in (("last_fencing_token", token_field()), ("last_fencing_owner", owner_field())):
            state.add_field(app_label, self.model_name.lower(), name, field, preserve_default=True)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Add them, each in a moment: rows that are there aren't written."""
        self._alter(
            app_label,
            schema_editor,
            to_state,
            "ADD COLUMN last_fencing_token bigint NOT NULL DEFAULT 0",
            "ADD COLUMN last_fencing_owner varchar(64) NULL",
        )

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop them, with the tokens."""
        changes = "DROP COLUMN last_fencing_owner", "DROP COLUMN last_fencing_token"
        self._alter(app_label, schema_editor, to_state, *changes)

    def describe(self) -> str:
        """What ``migrate`` says."""
        return f"Add the fencing columns to {self.model_name}"

    def _alter(self, app_label: str, schema_editor: Any, state: Any, *changes: str) -> None:
        table = self.table(app_label, schema_editor, state)
        for change in changes if table else ():
            schema_editor.execute(f"ALTER TABLE {schema_editor.quote_name(table)} {change}", params=None)


class CreateFenceTrigger(OnModel):
    """Make the trigger that refuses stale tokens on a model's table; see `celery_fence.fencing.trigger`."""

    def __init__(
        self,
        model_name: str,
        *,
        mode: TriggerMode = "enforce",
        unfenced: Verdict = "refuse",
        deletes: Verdict = "allow",
    ) -> None:
        super().__init__(model_name)
        self.mode = mode
        self.unfenced = unfenced
        self.deletes = deletes

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make it, in the place of one that is there."""
        for trigger in self._triggers(app_label, schema_editor, to_state):
            _run(schema_editor, trigger.create(schema_editor.connection.vendor))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop it."""
        for trigger in self._triggers(app_label, schema_editor, from_state):
            _run(schema_editor, trigger.drop(schema_editor.connection.vendor))

    def describe(self) -> str:
        """What ``migrate`` says."""
        return f"Create the fence trigger of {self.model_name}"

    def _triggers(self, app_label: str, schema_editor: Any, state: Any) -> list[FenceTrigger]:
        table = self.table(app_label, schema_editor, state)
        return [FenceTrigger(table, None, self.mode, self.unfenced, self.deletes)] if table else []


class DropFenceTrigger(CreateFenceTrigger):
    """Drop it; the options say how it is made again by ``migrate`` backwards."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop it."""
        super().database_backwards(app_label, schema_editor, to_state, from_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make it again."""
        super().database_forwards(app_label, schema_editor, from_state, to_state)

    def describe(self) -> str:
        """What ``migrate`` says."""
        return f"Drop the fence trigger of {self.model_name}"


def _allowed(schema_editor: Any, app_label: str) -> bool:
    from django.db import router

    return bool(router.allow_migrate(schema_editor.connection.alias, app_label))


def _run(schema_editor: Any, statements: list[str]) -> None:
    for statement in statements:
        schema_editor.execute(statement, params=None)
