"""The story of the frozen tenant, read from the journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from example_app.models import JournalEntry


def frozen_tenant(entries: Sequence[JournalEntry]) -> int | None:
    """Whose run was frozen; None if nobody's was."""
    return next((entry.tenant_id for entry in entries if entry.what == "frozen"), None)


def timeline(entries: Sequence[JournalEntry]) -> Iterator[str]:
    """One line for each thing that happened to the frozen tenant, in columns that fit 80 characters."""
    tenant = frozen_tenant(entries)
    story = sorted((entry for entry in entries if entry.tenant_id == tenant), key=lambda entry: entry.at)
    letters = {entry.task_id: entry.who[-1] for entry in story if entry.what == "published"}
    yield f"{'seconds':>8}  {'who':<16}  {'token':<16}  what"
    for entry, times in _folded(story):
        words = _words(entry, letters, times=times)
        yield f"{entry.at - story[0].at:>8.2f}  {_who(entry):<16}  {entry.token or '-':<16}  {words}"


def _folded(story: Sequence[JournalEntry]) -> Iterator[tuple[JournalEntry, int]]:
    """Misses of one message in a row become one line."""
    position = 0
    while position < len(story):
        entry, end = story[position], position + 1
        while entry.what == "missed" and end < len(story) and _same(story[end], entry):
            end += 1
        yield entry, end - position
        position = end


def _same(one: JournalEntry, other: JournalEntry) -> bool:
    return (one.what, one.task_id) == (other.what, other.task_id)


def _who(entry: JournalEntry) -> str:
    if entry.who.startswith("worker"):
        return f"{entry.who} {entry.pid}"
    return entry.who


def _words(entry: JournalEntry, letters: Mapping[str, str], *, times: int) -> str:
    message = letters.get(entry.task_id, "?")
    often = "" if times == 1 else f" {times} times"
    return {
        "published": f"sends message {message}",
        "started": f"message {message}: unpaid, charging",
        "missed": f"message {message}: key held{often}, later",
        "frozen": f"FREEZES process {entry.pid}",
        "woken": f"WAKES process {entry.pid}",
        "charged": f"message {message}: WRITES the charge",
        "already paid": f"message {message}: paid already, ends",
        "answered": f"message {message}: ANSWERED, {letters.get(entry.receipt or '', '?')} has paid",
        "refused": f"message {message}: late UPDATE REFUSED",
        "raw refused": "raw SQL: UPDATE REFUSED",
        "raw written": "raw SQL: WRITES the balance",
        "killed": f"KILLS process {entry.pid}",
    }.get(entry.what, entry.what)
