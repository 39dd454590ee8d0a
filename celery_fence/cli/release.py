"""``fence release KEY``: end a lease and fence its holder off, after a look and a question."""

from __future__ import annotations

import getpass
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

import click

from celery_fence.cli.command import FenceCommand, json_option, print_json, yes_option
from celery_fence.cli.holders import document_of, lines_about, name_of
from celery_fence.cli.place import Place, Refused, place, place_options
from celery_fence.cli.words import iso, printable
from celery_fence.locking.store import Held

if TYPE_CHECKING:
    from celery_fence.locking.store import Holder

logger = logging.getLogger(__name__)

AGAIN = "Its message is sent again then, unless the lost_policy of its task says otherwise."


@click.command(cls=FenceCommand)
@click.argument("key")
@click.option("--owner", metavar="ID", help="Only if this owner, as `why` showed it, still holds KEY.")
@yes_option
@json_option
@place_options()
@click.pass_context
def command(ctx: click.Context, key: str, owner: str | None, *, yes: bool, as_json: bool) -> None:
    """
    End the lease on KEY, whoever holds it, and fence that holder off.

    Shows the holder and asks first. The holder finds out at its next beat and can't
    get the lease back; the next token is higher. Refused, with exit code 1, if
    somebody else has got the key since the holder was shown.
    """
    where = place(ctx)
    holder = where.store.holder(key)
    if owner is not None and holder is not None and holder.owner != owner:
        _refuse(where, key, holder, as_json=as_json)
    if holder is None and owner is None:
        _say(where, key, None, "already_free", as_json=as_json)
        return
    if not yes:
        _ask(key, holder)
    _release(where, key, holder.owner if owner is None and holder else owner, as_json=as_json)


def _ask(key: str, holder: Holder | None) -> None:
    """Go on if a person says so; everything is printed beside the output, which may be JSON."""
    shown = printable(key)
    if holder is None:
        click.echo(
            f"The key {shown!r} looks free; its lease may have vanished while its holder works on.", err=True
        )
    else:
        click.echo("\n".join([f"The key {shown!r} is held:", *lines_about(holder, time.time())]), err=True)
        if holder.facts.task_id:
            click.echo(AGAIN, err=True)
    click.confirm("End this lease and fence its holder off?", abort=True, err=True)


def _release(where: Place, key: str, owner: str | None, *, as_json: bool) -> None:
    answer = where.store.force_release(key, owner)
    if isinstance(answer, Held):
        _refuse(where, key, answer.holder, as_json=as_json)
    else:
        _write_audit_line(where, key, answer.holder, owner)
        _say(where, key, answer.holder, "force_released", as_json=as_json)


def _refuse(where: Place, key: str, holder: Holder, *, as_json: bool) -> None:
    if as_json:
        print_json(_document(where, key, holder, "held_by_another"))
    raise Refused(
        f"Nothing was released: the key {printable(key)!r} belongs to another owner by now, "
        f"{_in_full(holder)}. If that is the one to end, give --owner its id."
    )


def _say(where: Place, key: str, holder: Holder | None, outcome: str, *, as_json: bool) -> None:
    if as_json:
        print_json(_document(where, key, holder, outcome))
        return
    shown = printable(key)
    if outcome == "already_free":
        click.echo(f"The key {shown!r} is free already: nothing was changed.")
    elif holder is None:
        click.echo(
            f"The key {shown!r} was free already. Should its old holder still work on, it is fenced off now."
        )
    else:
        click.echo(f"Released {shown!r}: {name_of(holder)} (token {holder.token}) is fenced off.")
        click.echo(
            "It hears of it at its next beat. The next token is higher, so guarded writes refuse the old one."
        )
        if holder.facts.task_id:
            click.echo(AGAIN)


def _document(where: Place, key: str, holder: Holder | None, outcome: str) -> dict[str, Any]:
    """*holder*: who was fenced off, or who has the key instead."""
    lease = None if holder is None else document_of(holder, time.time())
    released = outcome == "force_released"
    return {**where.document(), "key": key, "released": released, "outcome": outcome, "lease": lease}


def _write_audit_line(where: Place, key: str, holder: Holder | None, owner: str | None) -> None:
    """Who did what to whom, for the log; Python writes a warning to stderr where no logging is set up."""
    facts = holder.facts if holder else None
    extras = {
        "key": key,
        "token": holder.token if holder else None,
        "owner": holder.owner if holder else owner,
        "task_id": facts.task_id if facts else None,
        "task_name": facts.task_name if facts else None,
    }
    logger.warning(
        "%s: %s force-released %r in %s; fenced off: %s",
        iso(time.time()),
        f"{_user()} on {socket.gethostname()}",
        key,
        where.store.description,
        _in_full(holder) if holder else f"owner {owner}, already gone",
        extra=extras,
    )


def _in_full(holder: Holder) -> str:
    owner = f", owner {printable(holder.owner)}" if holder.facts.task_name else ""
    return f"{name_of(holder)}{owner}, token {holder.token}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "an unnamed user"  # in a container, a user id needs no name
