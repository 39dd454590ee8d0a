"""
The trigger in MySQL and MariaDB.

There is no ``UPDATE OF`` here, and a statement that doesn't set the token looks like
one that sets it to what it is: `unfenced` can't be refused.
"""

from __future__ import annotations

from typing import Final

from celery_fence.fencing.trigger.definition import SIGHTINGS, FenceTrigger, literal, sighting

SIGHTINGS_DDL: Final = f"""
CREATE TABLE IF NOT EXISTS {SIGHTINGS} (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    table_name VARCHAR(255) NOT NULL,
    what VARCHAR(16) NOT NULL,
    token BIGINT,
    seen BIGINT,
    seen_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE=InnoDB"""

FIND: Final = """
SELECT event_object_table, action_statement
FROM information_schema.triggers
WHERE trigger_schema = COALESCE(:schema, DATABASE())"""

ON_UPDATE: Final = """
CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW
BEGIN
    {mark}
    DECLARE refusal VARCHAR(255);
    IF NEW.last_fencing_token < OLD.last_fencing_token OR (
        NEW.last_fencing_token = OLD.last_fencing_token
        AND NOT (NEW.last_fencing_owner <=> OLD.last_fencing_owner)
    ) THEN
        {stale}
    END IF;
END"""

ON_DELETE: Final = """
CREATE TRIGGER {name} BEFORE DELETE ON {table} FOR EACH ROW
BEGIN
    {mark}
    DECLARE refusal VARCHAR(255);
    {deleted}
END"""

# MESSAGE_TEXT has 128 characters at most.
REFUSE: Final = """SET refusal = LEFT(CONCAT('celery_fence: ', {words}, ' refused (', {shown}, ')'), 128);
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = refusal;"""

SEEN: Final = "'seen ', OLD.last_fencing_token"


def create(trigger: FenceTrigger) -> list[str]:
    """See `TriggerDialect`."""
    on = _within(trigger, trigger.table)
    updates = ON_UPDATE.format(
        name=_within(trigger, trigger.name + "_u"), table=on, mark=trigger.mark, stale=_stale(trigger)
    )
    if trigger.deletes == "allow":
        return [updates]
    deletes = ON_DELETE.format(
        name=_within(trigger, trigger.name + "_d"), table=on, mark=trigger.mark, deleted=_deleted(trigger)
    )
    return [updates, deletes]


def drop(trigger: FenceTrigger) -> list[str]:
    """See `TriggerDialect`."""
    return [f"DROP TRIGGER IF EXISTS {_within(trigger, trigger.name + ending)}" for ending in ("_u", "_d")]


def quoted(name: str) -> str:
    """*name* as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def _within(trigger: FenceTrigger, name: str) -> str:
    return quoted(name) if trigger.schema is None else f"{quoted(trigger.schema)}.{quoted(name)}"


def _stale(trigger: FenceTrigger) -> str:
    if trigger.mode == "shadow":
        return f"{sighting(trigger, 'stale')};"
    shown = f"'token ', NEW.last_fencing_token, ', ', {SEEN}"
    return REFUSE.format(words=literal(f"stale write to {trigger.table}"), shown=shown)


def _deleted(trigger: FenceTrigger) -> str:
    if trigger.mode == "shadow":
        return f"{sighting(trigger, 'delete')};"
    words = literal(f"delete from {trigger.table}")  # noqa: S608 - words for people, in a literal
    return REFUSE.format(words=words, shown=SEEN)
