"""A dead letter, told to a program, in a table, and in lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery_fence.cli.screen import Listing
from celery_fence.cli.words import ago, iso, moment, plural, printable

if TYPE_CHECKING:
    from celery_fence.task.letters import Letter

COLUMNS = ("TASK ID", "TASK", "KEY", "REASON", "TRIES", "FIRST MISS", "LAST MISS", "QUEUE")


def document_of(letter: Letter) -> dict[str, Any]:
    """What is known of a letter, under names that stay."""
    return {
        "id": letter.id,
        "task": letter.task,
        "key": letter.key,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "first_miss": iso(letter.first_miss),
        "last_miss": iso(letter.last_miss),
        "original_queue": letter.queue,
    }


def whole_document_of(letter: Letter) -> dict[str, Any]:
    """Everything that is known of a letter, arguments included."""
    return {
        **document_of(letter),
        "args": letter.args,
        "kwargs": letter.kwargs,
        "holder": letter.holder,
        "holder_task": letter.holder_task,
        "holder_task_id": letter.holder_task_id,
        "expires": letter.expires or None,
    }


def listing_of(found: Sequence[Letter], now: float) -> Listing:
    """The letters as a table."""
    return Listing(
        columns=COLUMNS,
        rows=[_row(letter, now) for letter in found],
        short=("KEY", "TASK ID"),
        below=[_rest(letter, now) for letter in found],
    )


def lines_about(letter: Letter, now: float) -> list[str]:
    """All of a letter, one fact a line."""
    holder = f"{letter.holder_task}[{letter.holder_task_id}]" if letter.holder_task else letter.holder
    first, last = (ago(each, now) if each else "" for each in (letter.first_miss, letter.last_miss))
    facts = {
        "task": letter.task,
        "args": letter.args,
        "kwargs": letter.kwargs,
        "key": letter.key,
        "reason": letter.reason,
        "tries": str(letter.attempts or ""),
        "first miss": first,
        "last miss": last,
        "held by": holder,
        "came from": letter.queue,
        "expires": letter.expires,
    }
    return [
        printable(letter.id),
        *(f"  {name:<10}  {printable(text)}" for name, text in facts.items() if text),
    ]


def _row(letter: Letter, now: float) -> tuple[str, ...]:
    first, last = (moment(each, now) if each else "-" for each in (letter.first_miss, letter.last_miss))
    tries = str(letter.attempts or "-")
    cells = (letter.id, letter.task, letter.key, letter.reason, tries, first, last, letter.queue)
    return tuple(cell or "-" for cell in cells)


def _rest(letter: Letter, now: float) -> str:
    """What of a letter isn't in the short columns."""
    tries = plural(letter.attempts, "try", "tries") if letter.attempts else ""
    last = f"last miss {moment(letter.last_miss, now)}" if letter.last_miss else ""
    queue = f"from {letter.queue}" if letter.queue else ""
    return ", ".join(filter(None, (letter.task, letter.reason, tries, last, queue)))
