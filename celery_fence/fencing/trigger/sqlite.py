"""
The trigger in SQLite: up to four triggers for each table.

A trigger can't change the row here, so the one that fires where a statement sets the
token leaves a line in the table of sightings, and the one that fires after every
change looks for it and takes it away again.
"""

from __future__ import annotations

from typing import Final

from celery_fence.fencing.trigger.definition import SIGHTINGS, FenceTrigger, literal, sighting

SIGHTINGS_DDL: Final = f"""
CREATE TABLE IF NOT EXISTS {SIGHTINGS} (
    id INTEGER NOT NULL PRIMARY KEY,
    table_name VARCHAR(255) NOT NULL,
    what VARCHAR(16) NOT NULL,
    token BIGINT,
    seen BIGINT,
    seen_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL
)"""

FIND: Final = (
    "SELECT tbl_name, sql FROM sqlite_master WHERE type = 'trigger' AND (:schema IS NULL OR :schema = 'main')"
)

STALE: Final = """
CREATE TRIGGER {name} BEFORE UPDATE OF last_fencing_token, last_fencing_owner ON {table} FOR EACH ROW
WHEN NEW.last_fencing_token < OLD.last_fencing_token OR (
    NEW.last_fencing_token = OLD.last_fencing_token AND NEW.last_fencing_owner IS NOT OLD.last_fencing_owner
)
BEGIN
    {mark}
    {verdict};
END"""

SHOWN: Final = """
CREATE TRIGGER {name} BEFORE UPDATE OF last_fencing_token, last_fencing_owner ON {table} FOR EACH ROW
BEGIN
    {mark}
    INSERT INTO fence_sightings (table_name, what) VALUES ({literal}, 'shown');
END"""

UNFENCED: Final = """
CREATE TRIGGER {name} AFTER UPDATE ON {table} FOR EACH ROW
BEGIN
    {mark}
    {verdict}
        WHERE NOT EXISTS (SELECT 1 FROM fence_sightings WHERE table_name = {literal} AND what = 'shown');
    DELETE FROM fence_sightings WHERE table_name = {literal} AND what = 'shown';
END"""

DELETED: Final = """
CREATE TRIGGER {name} BEFORE DELETE ON {table} FOR EACH ROW
BEGIN
    {mark}
    {verdict};
END"""

ENDINGS: Final = ("stale", "shown", "unfenced", "delete")


def create(trigger: FenceTrigger) -> list[str]:
    """See `TriggerDialect`."""
    wanted = {"stale": STALE}
    if trigger.unfenced == "refuse":
        wanted |= {"shown": SHOWN, "unfenced": UNFENCED}
    if trigger.deletes == "refuse":
        wanted |= {"delete": DELETED}
    return [
        template.format(
            name=_name(trigger, what),
            table=quoted(trigger.table),
            mark=trigger.mark,
            literal=literal(trigger.table),
            verdict=_verdict(trigger, what),
        )
        for what, template in wanted.items()
    ]


def drop(trigger: FenceTrigger) -> list[str]:
    """See `TriggerDialect`."""
    return [f"DROP TRIGGER IF EXISTS {_name(trigger, ending)}" for ending in ENDINGS]


def quoted(name: str) -> str:
    """*name* as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def _name(trigger: FenceTrigger, ending: str) -> str:
    name = quoted(f"{trigger.name}_{ending}")
    return name if trigger.schema is None else f"{quoted(trigger.schema)}.{name}"


def _verdict(trigger: FenceTrigger, what: str) -> str:
    if trigger.mode == "shadow":
        return sighting(trigger, what)
    # The text has to be a literal: SQLite can't say which tokens it were.
    words = {"stale": "stale write to", "unfenced": "unfenced write to", "delete": "delete from"}.get(what)
    return f"SELECT RAISE(ABORT, {literal(f'celery_fence: {words} {trigger.table} refused')})"
