"""All records of a database: to be looked at, and to be deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_fence.errors import ConfigError
from celery_fence.fencing.gate.mark import kept_scope
from celery_fence.fencing.gate.place import place_of
from celery_fence.fencing.idempotency.record import DELETE, LIST, PAGE, READ, WHOLE, Record
from celery_fence.fencing.idempotency.table import dialect_at


def find_record(connection: Any, key: str, step: str = WHOLE) -> Record | None:
    """The record of *key*, or of one step of it, with its encoded result; None where there is none. One round trip."""
    rows = place_of(connection).ask(READ, {"record": kept_scope(key), "step": kept_scope(step)}).rows
    return Record.of(rows[0]) if rows else None


def list_records(connection: Any) -> Iterator[Record]:
    """Every record, steps and claims too, without the results, in the order of their keys; read in pages of 500."""
    place = place_of(connection)
    after = {"record": "", "step": ""}
    while True:
        page = [Record.of(row) for row in place.ask(LIST, after).rows]
        yield from page
        if len(page) < PAGE:
            return
        after = {"record": page[-1].key, "step": page[-1].step}


def delete_record(connection: Any, key: str) -> int:
    """
    Forget what was done for *key*, its steps as well, in the caller's transaction; answers how many rows there were.

    The work is done again when it is asked for again.
    """
    return place_of(connection).ask(DELETE, {"record": kept_scope(key)}).rowcount


def delete_records(connection: Any, *, older_than: float) -> int:
    """
    Forget what was done, or claimed and never finished, more than *older_than* seconds ago; answers how many rows.

    One statement, in the caller's transaction. Keep records for longer than a message may
    come again: the broker's visibility timeout, the longest retry, a replayed dead letter.
    """
    is_number = isinstance(older_than, int | float) and not isinstance(older_than, bool)
    if not (is_number and 0 < older_than < float("inf")):
        raise ConfigError(f"older_than must be a number of seconds above 0, not {older_than!r}.")
    place = place_of(connection)
    return place.ask(dialect_at(place).DELETE_OLD, {"seconds": round(older_than)}).rowcount
