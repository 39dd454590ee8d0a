"""
The trigger in PostgreSQL: two row triggers and one function of their own for each table.

The first fires only where the statement's SET names one of the fence's columns. It says
so to the second, which fires for every row and has the say, by adding 2**62 to the
token. So the second can tell a run's next write from a writer that shows no token.
"""

from __future__ import annotations

from typing import Final

from celery_fence.fencing.trigger.definition import SIGHTINGS, FenceTrigger, literal, sighting

SIGHTINGS_DDL: Final = f"""
CREATE TABLE IF NOT EXISTS {SIGHTINGS} (
    id BIGSERIAL PRIMARY KEY,
    table_name VARCHAR(255) NOT NULL,
    what VARCHAR(16) NOT NULL,
    token BIGINT,
    seen BIGINT,
    seen_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
)"""

FIND: Final = """
SELECT DISTINCT tables.relname, functions.prosrc
FROM pg_trigger AS triggers
JOIN pg_class AS tables ON tables.oid = triggers.tgrelid
JOIN pg_namespace AS schemas ON schemas.oid = tables.relnamespace
JOIN pg_proc AS functions ON functions.oid = triggers.tgfoid
WHERE NOT triggers.tgisinternal AND schemas.nspname = COALESCE(CAST(:schema AS TEXT), current_schema())"""

FUNCTION: Final = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql{rights} AS $fence$
{mark}
BEGIN
    IF TG_OP = 'DELETE' THEN
        {deleted}
        RETURN OLD;
    END IF;
    IF TG_ARGV[0] = 'shown' THEN
        NEW.last_fencing_token = 4611686018427387904
            + CASE WHEN NEW.last_fencing_token < 0 THEN -1 ELSE NEW.last_fencing_token END;
        RETURN NEW;
    END IF;
    IF NEW.last_fencing_token < 2305843009213693952 THEN
        {unfenced}
        RETURN NEW;
    END IF;
    NEW.last_fencing_token = NEW.last_fencing_token - 4611686018427387904;
    IF NEW.last_fencing_token < OLD.last_fencing_token OR (
        NEW.last_fencing_token = OLD.last_fencing_token
        AND NEW.last_fencing_owner IS DISTINCT FROM OLD.last_fencing_owner
    ) THEN
        {stale}
    END IF;
    RETURN NEW;
END
$fence$"""

REFUSE: Final = """RAISE EXCEPTION USING
            ERRCODE = '{code}',
            MESSAGE = 'celery_fence: {what} ' || {table} || ' refused ({shown}seen ' || OLD.last_fencing_token || ')',
            HINT = '{hint}';"""

SIGHTING_RIGHTS: Final = " SECURITY DEFINER SET search_path FROM CURRENT"
"""Whoever may write to the table needn't have rights on that of the sightings, nor find it by its name."""

SHOWN: Final = "UPDATE OF last_fencing_token, last_fencing_owner"

STALE_HINT: Final = "Another run has taken over. Roll back, stop, and write nothing more for this key."
UNFENCED_HINT: Final = (
    "Set last_fencing_token and last_fencing_owner to those of the lease under which you write."
)
DELETE_HINT: Final = "Rows of this table are not to be deleted while it has this trigger."


def create(trigger: FenceTrigger) -> list[str]:
    """See `TriggerDialect`."""
    function = FUNCTION.format(
        function=_within(trigger, trigger.name),
        mark=trigger.mark,
        rights=SIGHTING_RIGHTS if trigger.mode == "shadow" else "",
        stale=_verdict(trigger, "stale"),
        unfenced=_verdict(trigger, "unfenced") if trigger.unfenced == "refuse" else "",
        deleted=_verdict(trigger, "delete") if trigger.deletes == "refuse" else "",
    )
    return [
        function,
        _on(trigger, "_1", SHOWN, "'shown'"),
        _on(trigger, "_2", "UPDATE OR DELETE" if trigger.deletes == "refuse" else "UPDATE", ""),
    ]


def drop(trigger: FenceTrigger) -> list[str]:
    """See `TriggerDialect`."""
    on = _within(trigger, trigger.table)
    return [
        f"DROP TRIGGER IF EXISTS {quoted(trigger.name + '_1')} ON {on}",
        f"DROP TRIGGER IF EXISTS {quoted(trigger.name + '_2')} ON {on}",
        f"DROP FUNCTION IF EXISTS {_within(trigger, trigger.name)}()",
    ]


def quoted(name: str) -> str:
    """*name* as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def _on(trigger: FenceTrigger, ending: str, event: str, argument: str) -> str:
    return (
        f"CREATE TRIGGER {quoted(trigger.name + ending)} BEFORE {event} ON {_within(trigger, trigger.table)} "
        f"FOR EACH ROW EXECUTE PROCEDURE {_within(trigger, trigger.name)}({argument})"
    )


def _within(trigger: FenceTrigger, name: str) -> str:
    return quoted(name) if trigger.schema is None else f"{quoted(trigger.schema)}.{quoted(name)}"


def _verdict(trigger: FenceTrigger, what: str) -> str:
    if trigger.mode == "shadow":
        return f"{sighting(trigger, what)};"
    words, code, hint, shown = {
        "stale": (
            "stale write to",
            "ZF001",
            STALE_HINT,
            "token ' || NEW.last_fencing_token || ', ",
        ),
        "unfenced": ("unfenced write to", "ZF002", UNFENCED_HINT, ""),
        "delete": ("delete from", "ZF003", DELETE_HINT, ""),
    }[what]
    return REFUSE.format(code=code, what=words, table=literal(trigger.table), shown=shown, hint=hint)
