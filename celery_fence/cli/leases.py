"""``fence leases``: who holds what."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from celery_fence.cli.command import FenceCommand, json_option, print_json
from celery_fence.cli.holders import document_of, listing_of
from celery_fence.cli.place import Place, place, place_options
from celery_fence.cli.words import plural

if TYPE_CHECKING:
    from celery_fence.locking.store import Holder


@click.command(cls=FenceCommand)
@click.option(
    "--match", metavar="TEXT", default="", help="Only where key, task, task id or host contains TEXT."
)
@json_option
@place_options()
@click.pass_context
def command(ctx: click.Context, match: str, *, as_json: bool) -> None:
    """
    Show who holds what, since when, and for how much longer.

    The longest held come first. A lease marked NO-TTL never expires: it wasn't
    made by celery-fence.
    """
    where = place(ctx)
    # Read in batches; the order is that of people, not of the store.
    found = sorted(
        (holder for holder in where.store.leases() if _matches(holder, match)),
        key=lambda holder: (holder.since, holder.key),
    )
    now = time.time()
    if as_json:
        print_json({**where.document(), "leases": [document_of(holder, now) for holder in found]})
    elif found:
        listing_of(found, now).show()
    else:
        click.echo(_nothing(where, match))
    if found and not as_json:
        click.echo(f"{plural(len(found), 'lease')} in {where.store.description}.", err=True)


def _matches(holder: Holder, text: str) -> bool:
    facts = holder.facts
    return any(text in each for each in (holder.key, facts.task_name, facts.task_id, facts.host))


def _nothing(where: Place, match: str) -> str:
    about = f" that matches {match!r}" if match else ""
    return f"No lease{about} in {where.store.description} under the prefix {where.prefix!r}: nothing is held."
