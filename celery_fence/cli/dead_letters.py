"""``fence dead-letters``: look at what was given up, send it back, or delete it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_fence.cli.command import FenceCommand, json_option, print_json, yes_option
from celery_fence.cli.letters import document_of, lines_about, listing_of, whole_document_of
from celery_fence.cli.place import OutOfReach, Refused, app_of
from celery_fence.cli.words import iso, plural, printable

if TYPE_CHECKING:
    from celery_fence.task.letters import Letter

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


@click.group()
def command() -> None:
    """
    Look at dead letters, send them back, or delete them.

    Dead letters lie in the broker, so these commands need the project (celery -A)
    or at least its broker (celery -b).
    """


queue_option = click.option(
    "--queue", metavar="NAME", help="Instead of the project's fence_dead_letter_queue."
)


def choice_options(function: Function) -> Function:
    """Add ``--id`` and ``--all``."""
    ids = click.option("--id", "ids", metavar="ID", multiple=True, help="This task id; may be repeated.")
    whole = click.option("--all", "all_of_them", is_flag=True, help="Every letter that lies there now.")
    return ids(whole(function))


@command.command("list", cls=FenceCommand)
@queue_option
@json_option
@click.pass_context
def list_letters(ctx: click.Context, queue: str | None, *, as_json: bool) -> None:
    """Show what lies in the dead-letter queue, the oldest first; it stays there."""
    name = _name_of_queue(ctx, queue)
    found = _letters(ctx, name)
    if as_json:
        print_json({"queue": name, "letters": [document_of(letter) for letter in found]})
    elif found:
        listing_of(found, time.time()).show()
        click.echo(f"{plural(len(found), 'dead letter')} in the queue {name!r}.", err=True)
    else:
        click.echo(f"No dead letters in the queue {name!r}.")


@command.command("show", cls=FenceCommand)
@click.argument("task_id", metavar="ID")
@queue_option
@json_option
@click.pass_context
def show_letter(ctx: click.Context, task_id: str, queue: str | None, *, as_json: bool) -> None:
    """Show everything about the letter with the task id ID, arguments included."""
    name = _name_of_queue(ctx, queue)
    found = [letter for letter in _letters(ctx, name) if letter.id == task_id]
    if not found:
        raise Refused(f"No dead letter {task_id!r} in the queue {name!r}. See: fence dead-letters list")
    if as_json:
        print_json({"queue": name, "letters": [whole_document_of(letter) for letter in found]})
        return
    for letter in found:
        click.echo("\n".join(lines_about(letter, time.time())))


@command.command("replay", cls=FenceCommand)
@choice_options
@queue_option
@json_option
@click.pass_context
def replay_letters(
    ctx: click.Context, ids: Sequence[str], queue: str | None, *, all_of_them: bool, as_json: bool
) -> None:
    """
    Send letters back to the queues they came from.

    Each keeps its task id and arguments and waits afresh for its key. It leaves the
    dead-letter queue once the broker has confirmed that it is back.
    """
    from celery_fence.task import dead_letters

    _check_choice(ids, all_of_them=all_of_them)
    name = _name_of_queue(ctx, queue)
    with _broker(ctx) as app:
        done = dead_letters.replay_letters(app, queue=name, ids=ids or None)
    _say("Sent back", "replayed", done, name, ids, as_json=as_json)


@command.command("purge", cls=FenceCommand)
@choice_options
@queue_option
@yes_option
@json_option
@click.pass_context
def purge_letters(
    ctx: click.Context, ids: Sequence[str], queue: str | None, *, all_of_them: bool, yes: bool, as_json: bool
) -> None:
    """
    Delete letters for good; asks first.

    Letters that arrive after the question stay.
    """
    from celery_fence.task import dead_letters

    _check_choice(ids, all_of_them=all_of_them)
    name = _name_of_queue(ctx, queue)
    limit = None
    if not yes:
        chosen = [letter for letter in _letters(ctx, name) if not ids or letter.id in ids]
        if not chosen:
            _say("Deleted", "purged", [], name, ids, as_json=as_json)
            return
        _ask(chosen, name)
        limit = None if ids else len(chosen)
    with _broker(ctx) as app:
        done = dead_letters.purge_letters(app, queue=name, ids=ids or None, limit=limit)
    for letter in done:
        logger.warning(
            "%s: deleted the dead letter %s (%s) of the key %r",
            iso(time.time()),
            letter.id,
            letter.task,
            letter.key,
        )
    _say("Deleted", "purged", done, name, ids, as_json=as_json)


def _check_choice(ids: Sequence[str], *, all_of_them: bool) -> None:
    if bool(ids) == all_of_them:
        raise click.UsageError("Say which letters: --id ID (once or more), or --all of them.")


def _ask(chosen: Sequence[Letter], name: str) -> None:
    for letter in chosen:
        click.echo(f"  {printable(letter.id)}  {printable(letter.task)}  {printable(letter.key)}", err=True)
    which = plural(len(chosen), "dead letter")
    click.confirm(f"Delete {which} from the queue {name!r} for good?", abort=True, err=True)


def _say(
    verb: str, word: str, done: Sequence[Letter], name: str, ids: Sequence[str], *, as_json: bool
) -> None:
    """Tell what was done; ids that weren't there are an error, said after the rest has been done."""
    missing = sorted(set(ids) - {letter.id for letter in done})
    if as_json:
        print_json({"queue": name, word: [letter.id for letter in done], "missing": missing})
    else:
        click.echo(f"{verb} {plural(len(done), 'dead letter')} of the queue {name!r}.")
        for letter in done:
            where = f" to {printable(letter.queue)!r}" if word == "replayed" and letter.queue else ""
            click.echo(f"  {printable(letter.id)}  {printable(letter.task)}{where}")
    if missing:
        raise Refused(_missing(missing, name))


def _missing(ids: Sequence[str], name: str) -> str:
    return f"Not in the queue {name!r}, or of unknown origin: {', '.join(ids)}. See: fence dead-letters list"


def _name_of_queue(ctx: click.Context, queue: str | None) -> str:
    from celery_fence.task.settings import FenceSettings

    return queue or FenceSettings.of(app_of(ctx)).dead_letter_queue


def _letters(ctx: click.Context, name: str) -> list[Letter]:
    from celery_fence.task import dead_letters

    with _broker(ctx) as app:
        return dead_letters.letters(app, queue=name)


@contextmanager
def _broker(ctx: click.Context) -> Iterator[Any]:
    """The app; a broker that can't be asked is told in one line, without its password."""
    from kombu.exceptions import OperationalError

    app = app_of(ctx)
    try:
        yield app
    except (OperationalError, OSError) as error:
        said = str(error).rstrip(".")
        raise OutOfReach(
            f"The broker {app.connection_for_read().as_uri()} can't be asked: {said or type(error).__name__}. "
            "See whether it runs, and whether celery -A names the right project."
        ) from error
