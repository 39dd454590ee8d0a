"""``fence why KEY``: the answer to the on-call question, in sentences."""

from __future__ import annotations

import time
from difflib import get_close_matches
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from celery_fence.cli.command import FenceCommand, json_option, print_json
from celery_fence.cli.holders import document_of, lines_about, name_of
from celery_fence.cli.place import Place, place, place_options
from celery_fence.cli.words import ago, duration, iso, printable
from celery_fence.locking.store import History, Inspectable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_fence.locking.store import Holder

OVERDUE = 0.7
"""The part of its TTL after which a missing beat is worth a word; beats come after a third, with jitter."""


@click.command(cls=FenceCommand)
@click.argument("key")
@json_option
@place_options()
@click.pass_context
def command(ctx: click.Context, key: str, *, as_json: bool) -> None:
    """
    Explain why KEY is held, or that it is free.

    KEY is the rendered key, as in `tenant:7:sync`. Changes nothing.
    """
    where = place(ctx)
    holder = where.store.holder(key)
    # Asked second: a key that was released in between is then told as released.
    history = _history(where, key)
    now = time.time()
    sentences = list(_sentences(where, key, holder, history, now))
    if as_json:
        print_json({**where.document(), **_document(key, holder, history, now), "sentences": sentences})
        return
    click.echo(sentences[0])
    if holder:
        click.echo("\n".join(["", *lines_about(holder, now), ""]))
    for sentence in sentences[1:]:
        click.echo(sentence)


def _history(where: Place, key: str) -> History:
    return where.store.history(key) if isinstance(where.store, Inspectable) else History()


def _document(key: str, holder: Holder | None, history: History, now: float) -> dict[str, Any]:
    lease = None if holder is None else document_of(holder, now)
    return {
        "key": key,
        "state": lease["state"] if lease else ("free" if history.token else "unknown"),
        "lease": lease,
        "history": {
            "last_token": history.token or None,
            "last_granted": iso(history.granted),
            "last_released": iso(history.released),
            "last_force_released": iso(history.force_released),
        },
    }


def _sentences(where: Place, key: str, holder: Holder | None, history: History, now: float) -> Iterator[str]:
    if holder is None:
        yield from _about_free(where, key, history, now)
        return
    shown = f"The key '{printable(key)}'"
    if holder.ttl_left is None:
        yield f"{shown} is taken by a lease that never expires (NO-TTL)."
        yield "celery-fence makes no such leases; it was made by hand, or by another program under our names."
    elif holder.closed:
        yield f"{shown} is closed: its last holder, {name_of(holder)}, disappeared without releasing it."
        yield f"Nobody works on it, and it opens in {duration(holder.ttl_left)} (lock_lost_delay)."
    else:
        yield f"{shown} is held by {name_of(holder)}."
        yield _about_beat(holder, holder.ttl_left)
    yield from _about_before(holder, history, now)
    command = f"fence release {quote(printable(key))} --owner {quote(printable(holder.owner))}"
    yield f"To end it and fence its holder off: {command}"


def _about_beat(holder: Holder, left: float) -> str:
    """Whether the holder is alive, as far as its beats tell; the TTL is what is left plus what has passed."""
    beat, ttl = duration(holder.beat_age), duration(left + holder.beat_age)
    if holder.beat_age < OVERDUE * (left + holder.beat_age):
        return f"Its holder seems to be alive: the last beat came {beat} ago, and {ttl} may pass without one."
    return (
        f"Its holder may be dead, frozen or cut off: no beat for {beat} of the {ttl} that may pass without one. "
        f"If none comes, the key is free in {duration(left)}."
    )


def _about_before(holder: Holder, history: History, now: float) -> Iterator[str]:
    before = {
        "released": history.released,
        "force-released by an operator": history.force_released,
    }
    happened = {word: when for word, when in before.items() if when and when <= holder.since}
    if happened:
        word, when = max(happened.items(), key=lambda item: item[1])
        yield f"Before that it was {word} at {ago(when, now)}."


def _about_free(where: Place, key: str, history: History, now: float) -> Iterator[str]:
    shown = f"The key '{printable(key)}'"
    if not history.token:
        yield f"{shown} is free, and {where.store.description} knows nothing of it under the prefix {where.prefix!r}."
        yield "It was never used there, or not within fence_counter_retention, or it is spelled differently."
        yield from _look_alikes(where, key)
        return
    yield f"{shown} is free: nobody holds it."
    if history.force_released and history.force_released >= (history.granted or 0.0):
        yield f"An operator force-released it at {ago(history.force_released, now)}; its holder was fenced off."
    elif history.released and history.released >= (history.granted or 0.0):
        when = ago(history.released, now)
        yield f"It was last released at {when}, by its holder or, after its death, by its worker."
    elif history.granted:
        yield f"It was last granted at {ago(history.granted, now)} and never released: its lease expired or vanished."
        yield "Its holder died or was cut off, or the store lost its data or was flushed."
    yield f"The last token was {history.token}; the next one is higher."


def _look_alikes(where: Place, key: str) -> Iterator[str]:
    held = [holder.key for holder in where.store.leases()]
    inside = [each for each in held if key in each]
    close = (inside or get_close_matches(key, held, n=3))[:3]
    if close:
        yield "Held keys that look like it: " + ", ".join(printable(each) for each in close)
