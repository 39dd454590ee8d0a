"""``fence records``: look at what was done once, and let it be done again."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import click

from celery_fence.cli.command import FenceCommand, json_option, print_json, yes_option
from celery_fence.cli.place import Place, Refused, place, place_options
from celery_fence.cli.screen import Listing
from celery_fence.cli.words import ago, duration, iso, moment, plural, printable
from celery_fence.locking.records import Recording

if TYPE_CHECKING:
    from celery_fence.locking.records import Record

logger = logging.getLogger(__name__)

COLUMNS = ("RECORD", "STATE", "TASK", "DONE", "KEPT FOR", "RESULT", "KEY", "TASK ID", "TOKEN")


@click.group()
def command() -> None:
    """
    Look at the idempotency records of the lease store, or delete one.

    RECORD is the rendered idempotency key, as in `payment:7`. Records that tasks keep
    in a database of their own are not among them.
    """


@command.command("list", cls=FenceCommand)
@click.option("--match", metavar="TEXT", default="", help="Only where record, key, task or task id has TEXT.")
@json_option
@place_options()
@click.pass_context
def list_records(ctx: click.Context, match: str, *, as_json: bool) -> None:
    """Show what was done, and what is being done, the latest last."""
    where = place(ctx)
    found = [record for record in _power(where).records() if _matches(record, match)]
    found.sort(key=lambda record: (record.done or record.claimed, record.key))
    now = time.time()
    if as_json:
        print_json({**where.document(), "records": [document_of(record) for record in found]})
    elif found:
        _listing_of(found, now).show()
        click.echo(f"{plural(len(found), 'record')} in {where.store.description}.", err=True)
    else:
        about = f" that matches {match!r}" if match else ""
        click.echo(f"No record{about} in {where.store.description} under the prefix {where.prefix!r}.")


@command.command("show", cls=FenceCommand)
@click.argument("key", metavar="RECORD")
@json_option
@place_options()
@click.pass_context
def show_record(ctx: click.Context, key: str, *, as_json: bool) -> None:
    """Show everything about one record, its result included."""
    where = place(ctx)
    record = _power(where).record(key)
    if record is None:
        raise Refused(_missing(where, key))
    if as_json:
        print_json({**where.document(), **document_of(record), "result": _result_of(record)})
        return
    click.echo("\n".join([printable(key), *lines_about(record, time.time())]))


@command.command("delete", cls=FenceCommand)
@click.argument("key", metavar="RECORD")
@yes_option
@json_option
@place_options()
@click.pass_context
def delete_record(ctx: click.Context, key: str, *, yes: bool, as_json: bool) -> None:
    """
    Delete a record, so that its work may be done again; asks first.

    A claim belongs to a run that is under way, or died: to delete it stops nothing, and
    a run that returns records its work all the same.
    """
    where = place(ctx)
    power = _power(where)
    record = power.record(key)
    if record is not None and not yes:
        click.echo("\n".join([printable(key), *lines_about(record, time.time())]), err=True)
        click.confirm("Delete this record, so that its work may be done again?", abort=True, err=True)
    deleted = power.delete_record(key) if record is not None else None
    if as_json:
        document = None if deleted is None else document_of(deleted)
        print_json({**where.document(), "deleted": deleted is not None, "record": document})
    if deleted is None:
        raise Refused(_missing(where, key))
    logger.warning(
        "%s: deleted the record %r in %s: %s", iso(time.time()), key, where.store.description, _state(deleted)
    )
    if not as_json:
        click.echo(f"Deleted the record {printable(key)!r}: its work may be done again.")


def document_of(record: Record) -> dict[str, Any]:
    """What is known of a record, under names that stay."""
    facts = record.facts
    return {
        "record": record.key,
        "state": _state(record),
        "key": record.lock_key,
        "owner": record.owner,
        "token": record.token,
        "claimed": iso(record.claimed),
        "done": iso(record.done),
        "kept_for": round(record.left, 3),
        "result_bytes": record.size,
        "task": facts.task_name,
        "task_id": facts.task_id,
        "host": facts.host,
        "pid": facts.pid,
    }


def lines_about(record: Record, now: float) -> list[str]:
    """All of a record, one fact a line."""
    facts = record.facts
    result = _result_of(record)
    lines = {
        "state": _state(record),
        "by": f"{facts.task_name}[{facts.task_id}]" if facts.task_name else record.owner,
        "where": f"{facts.host}, pid {facts.pid}" if facts.host else "",
        "key": record.lock_key,
        "token": str(record.token),
        "claimed": ago(record.claimed, now) if record.claimed else "",
        "done": ago(record.done, now) if record.done else "",
        "kept for": duration(record.left),
        "result": (result if result is not None else "not kept") if record.done else "",
    }
    return [f"  {name:<8}  {printable(text)}" for name, text in lines.items() if text]


def _result_of(record: Record) -> str | None:
    """The encoded result as text, without what says how it is encoded; None where none is kept."""
    if record.value is None:
        return None
    head, _, payload = record.value.partition(b"\n")
    kind = head.decode(errors="replace").partition(";")[0]
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return f"{len(payload)} bytes of {kind}"


def _listing_of(records: list[Record], now: float) -> Listing:
    return Listing(
        columns=COLUMNS,
        rows=[_row(record, now) for record in records],
        short=("RECORD", "STATE", "KEPT FOR"),
        below=[_rest(record, now) for record in records],
    )


def _row(record: Record, now: float) -> tuple[str, ...]:
    facts = record.facts
    cells = (
        record.key,
        _state(record),
        facts.task_name,
        moment(record.done, now) if record.done else "",
        duration(record.left),
        "" if record.size is None else plural(record.size, "byte"),
        record.lock_key,
        facts.task_id,
        str(record.token),
    )
    return tuple(cell or "-" for cell in cells)


def _rest(record: Record, now: float) -> str:
    """What of a record isn't in the short columns."""
    facts = record.facts
    who = f"{facts.task_name}[{facts.task_id}]" if facts.task_name else f"owner {record.owner}"
    when = moment(record.done or record.claimed, now)
    return f"{who}, {'done' if record.done else 'claimed'} {when}, key {record.lock_key}"


def _state(record: Record) -> str:
    return "done" if record.done is not None else "claimed"


def _matches(record: Record, text: str) -> bool:
    facts = record.facts
    return any(text in each for each in (record.key, record.lock_key, facts.task_name, facts.task_id))


def _missing(where: Place, key: str) -> str:
    return (
        f"No record {printable(key)!r} in {where.store.description} under the prefix {where.prefix!r}: never made, "
        "expired, or spelled differently. See: fence records list"
    )


def _power(where: Place) -> Recording:
    if not isinstance(where.store, Recording):
        raise Refused(f"The store {where.store.description} keeps no idempotency records.")
    return where.store
