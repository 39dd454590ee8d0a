"""A lease, told to a program, in a table, and in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery_fence.cli.screen import Listing
from celery_fence.cli.words import duration, iso, moment, printable

if TYPE_CHECKING:
    from celery_fence.locking.store import Holder

COLUMNS = ("KEY", "TASK", "HELD FOR", "TTL LEFT", "SINCE", "HOST", "PID", "TASK ID", "TOKEN")
NO_TTL = "NO-TTL"


def held_for(holder: Holder, now: float) -> float:
    """Seconds since the lease was granted, by this machine's clock *now*; never less than its last beat is old."""
    return max(now - holder.since, holder.beat_age) if holder.since else 0.0


def document_of(holder: Holder, now: float) -> dict[str, Any]:
    """Everything that is known of a lease, under names that stay."""
    facts = holder.facts
    return {
        "key": holder.key,
        "state": _state(holder),
        "owner": holder.owner,
        "token": holder.token,
        "since": iso(holder.since),
        "held_for": round(held_for(holder, now), 3),
        "beat_age": round(holder.beat_age, 3),
        "ttl_left": holder.ttl_left,
        "task": facts.task_name,
        "task_id": facts.task_id,
        "retries": facts.retries,
        "host": facts.host,
        "pid": facts.pid,
    }


def listing_of(holders: Sequence[Holder], now: float) -> Listing:
    """The leases as a table."""
    return Listing(
        columns=COLUMNS,
        rows=[_row(holder, now) for holder in holders],
        short=("KEY", "HELD FOR", "TTL LEFT", "TOKEN", "HOST"),
        below=[_rest(holder, now) for holder in holders],
    )


def name_of(holder: Holder) -> str:
    """``billing.sync[0d3c...]``, as Celery's log has it; the owner where no task is known."""
    facts = holder.facts
    if not facts.task_name:
        return printable(f"owner {holder.owner}") if holder.owner else "somebody unknown"
    return printable(f"{facts.task_name}[{facts.task_id}]" if facts.task_id else facts.task_name)


def lines_about(holder: Holder, now: float) -> list[str]:
    """What an operator wants to see before touching it, one fact a line."""
    facts = holder.facts
    retries = f", retry {facts.retries}" if facts.retries else ""
    since = "unknown"
    if holder.since:
        since = f"{moment(holder.since, now)}, held for {duration(held_for(holder, now))}"
    return [
        f"  holder     {name_of(holder)}{retries}",
        f"  where      {printable(facts.host) or 'unknown'}" + (f", pid {facts.pid}" if facts.pid else ""),
        f"  since      {since}",
        f"  last beat  {duration(holder.beat_age)} ago" if holder.since else "  last beat  unknown",
        f"  TTL left   {ttl_left(holder)}",
        f"  token      {holder.token}",
        f"  owner      {printable(holder.owner) or 'none'}",
    ]


def ttl_left(holder: Holder) -> str:
    """The TTL left in words; ``NO-TTL`` for a lease that never expires."""
    return NO_TTL if holder.ttl_left is None else duration(holder.ttl_left)


def _state(holder: Holder) -> str:
    if holder.ttl_left is None:
        return "no_ttl"
    return "closed" if holder.closed else "held"


def _row(holder: Holder, now: float) -> tuple[str, ...]:
    facts = holder.facts
    held, since = "-", "-"
    if holder.since:
        held, since = duration(held_for(holder, now)), moment(holder.since, now)
    return (
        holder.key,
        facts.task_name or "-",
        "closed" if holder.closed else held,
        ttl_left(holder),
        since,
        facts.host or "-",
        str(facts.pid or "-"),
        facts.task_id or "-",
        str(holder.token),
    )


def _rest(holder: Holder, now: float) -> str:
    """What of a lease isn't in the short columns."""
    since = f"since {moment(holder.since, now)}" if holder.since else ""
    pid = f"pid {holder.facts.pid}" if holder.facts.pid else ""
    return ", ".join(filter(None, (name_of(holder), since, pid)))
