"""
Events as log lines: one line for each fact, with structured extras.

Every line has ``key``, ``token``, ``owner``, ``task_id``, ``task_name``, ``held_for``
and ``waited_for`` as attributes of its record (None where there is nothing to say).
Grants, renewals and releases are DEBUG, misses INFO, a failing renewal WARNING (the first,
second, fourth, eighth try and so on, the others DEBUG), a lost lease and a dead letter ERROR.
A message that comes back because the store is out of reach is a WARNING at first and then now
and then, the others INFO. Of what may come a thousandfold at once the first lines are written
and the others counted (`celery_fence.observers.bounds`).
"""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING, Any

from celery_fence.locking import events
from celery_fence.locking.clock import steady_clock
from celery_fence.locking.lease import Lease
from celery_fence.observers.bounds import SPAN, Bounds

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock

logger = logging.getLogger("celery_fence")

NOW_AND_THEN = 30.0
"""Seconds between two WARNINGs of a store that is out of reach."""

LIMITS = {logging.INFO: 20, logging.WARNING: 20, logging.ERROR: 100}
"""Lines of one kind that are written within `SPAN` seconds."""

ONE_A_MESSAGE = (events.Missed, events.PutOff, events.CopyEnded, events.Skipped)
"""No more of these than of Celery's own lines about the same messages."""


class Log:
    """Writes the lines of events; one for each app in each process."""

    def __init__(self, clock: Clock | None = None, bounds: Bounds | None = None) -> None:
        self._clock = clock or steady_clock()
        self._bounds = bounds or Bounds(clock)
        self._warned_at = -math.inf

    def __call__(self, event: events.Event) -> None:
        """Write the line of *event*, or count it where very many of its kind come at once."""
        level, text = _line(event)
        if isinstance(event, events.Missed) and event.holder is None:
            level = self._level_of_outage()
        if not logger.isEnabledFor(level):
            return
        if (
            level == logging.DEBUG
            or isinstance(event, ONE_A_MESSAGE)
            or self._bounds.admit(
                (type(event), level), LIMITS[level], functools.partial(_write_rest, event, level, text)
            )
        ):
            _write(event, level, text)

    def _level_of_outage(self) -> int:
        now = self._clock()
        if now - self._warned_at < NOW_AND_THEN:
            return logging.INFO
        self._warned_at = now
        return logging.WARNING


def _write(event: events.Event, level: int, text: str) -> None:
    logger.log(level, text, extra=_extras(event))


def _write_rest(event: events.Event, level: int, text: str, count: int) -> None:
    """Say how many lines weren't written, of which this would have been the last."""
    _write(event, level, f"And {count} more like this in the last {SPAN:.0f} s, the last one: {text}")


def _line(event: events.Event) -> tuple[int, str]:
    match event:
        case (
            events.Acquired()
            | events.Renewed(reinstated=False, failures=0)
            | events.ReleasedLease(outcome="released")
        ):
            return logging.DEBUG, _quiet(event)
        case events.Skipped(reason=reason):
            # The others have had their line as a miss.
            return (
                (logging.INFO, _repeat(event)) if reason == "already_done" else (logging.DEBUG, _quiet(event))
            )
        case events.Missed() | events.PutOff() | events.CopyEnded():
            return logging.INFO, _refusal(event)
        case events.RenewalFailed() | events.Renewed():
            return _renewal(event)
        case events.ReleasedLease():
            return logging.WARNING, _bad_release(event)
        case _:
            return _rare(event)


def _renewal(event: events.RenewalFailed | events.Renewed) -> tuple[int, str]:
    match event:
        case events.RenewalFailed(attempt=attempt, trusted_for=left, error=error):
            times = f" (try {attempt})" if attempt > 1 else ""
            # One at each try until trust ends, and for each lease of the process, would be a flood.
            level = logging.WARNING if events.worth_a_line(attempt) else logging.DEBUG
            return level, f"Renewing {event.key!r} failed{times}, trusted for {left:.1f} s more: {error}"
        case events.Renewed(reinstated=True):
            return logging.WARNING, f"The lease on {event.key!r} had vanished from the store and was put back"
        case events.Renewed(failures=failures):
            tries = "1 try" if failures == 1 else f"{failures} tries"
            return logging.INFO, f"Renewed {event.key!r} again, after {tries} that failed"


def _rare(event: events.Event) -> tuple[int, str]:
    match event:
        case events.StillWaiting(waited=waited, holder=holder):
            return (
                logging.WARNING,
                f"A message has waited {waited / 3600:.1f} h for {event.key!r}; {_held_by(holder)}",
            )
        case events.StaleWriteRefused():
            return logging.WARNING, event.line
        case events.ReleasedLate(late=late, outcome=outcome):
            end = "is free" if outcome == "released" else "wasn't ours any more"
            return logging.INFO, f"Made up for the release of {event.key!r}, {late:.1f} s late: the key {end}"
        case _:
            return logging.ERROR, _trouble(event)


def _quiet(event: events.Event) -> str:
    match event:
        case events.Acquired(lease=lease, waited=waited):
            return f"Took {event.key!r} with token {lease.token} after {waited:.1f} s"
        case events.Renewed(lag=lag):
            return f"Renewed {event.key!r}, {lag * 1000:.0f} ms after it was due"
        case events.Skipped(task_id=task_id):
            return f"Ended message {task_id} as skipped: {event.key!r} is being worked on"
        case _:
            return f"Released {event.key!r}"


def _repeat(event: events.Skipped) -> str:
    return f"{_who(event)} on {event.key!r} ends with the recorded result: its work was done before"


def _refusal(event: events.Event) -> str:
    match event:
        case events.Missed(outcome=outcome, delay=delay, attempt=attempt, holder=holder, error=error):
            when = f" in {delay:.1f} s" if delay else ""
            verb = "missed" if holder is not None else "couldn't ask for"
            why = f". {error}" if error is not None else ""
            return f"{_who(event)} {verb} {event.key!r} (try {attempt}), {_held_by(holder)}: {outcome}{when}{why}"
        case events.PutOff(delay=delay):
            return f"Put off a copy of {_who(event)}, whose run holds {event.key!r} or has just ended, by {delay:.1f} s"
        case events.CopyEnded(how=how, age=age):
            return f"A copy of {_who(event)} on {event.key!r} ends without running: it ended {age:.0f} s ago ({how})"
        case _:
            return f"Refused {event.key!r}"


def _bad_release(event: events.ReleasedLease) -> str:
    key, held = event.key, event.held_for
    if event.outcome == "gone":
        return (
            f"The lease on {key!r} was no longer ours at its release after {held:.1f} s: another run may have "
            "overlapped with the end of this one; its guarded writes are refused"
        )
    return (
        f"The lease on {key!r} couldn't be released yet: it is tried again while this process lives, and its TTL ends "
        f"it in any case: {event.error}"
    )


def _trouble(event: events.Event) -> str:
    match event:
        case events.Lost(reason=reason, lease=lease):
            return f"Lost the lease on {event.key!r} (token {lease.token}): {reason}"
        case events.DeadLetteredMessage(queue=queue, reason=reason, attempts=attempts):
            tries = "1 try" if attempts == 1 else f"{attempts} tries"
            reason = "the store was out of reach" if reason == "store_unavailable" else reason
            return (
                f"{_who(event)} gave up on {event.key!r} after {tries} ({reason}): dead-lettered to {queue!r}"
            )
        case events.CounterRaised(seen=seen, lease=lease):
            return (
                f"The newest token of {event.key!r}, {lease.token}, was refused as older than {seen}: tokens once ran "
                "ahead of the store's clock. The next one will be above it; check that clock"
            )
        case events.RanUnfenced(error=error):
            return f"{_who(event)} runs WITHOUT a lease on {event.key!r}, as its outage policy says: {error}"
        case _:
            return f"{type(event).__name__}: {event.key!r}"


def _who(event: Any) -> str:
    """The task and the message that an event is about, as Celery's own log lines name them."""
    name = getattr(event.source, "name", None) or "A hold"
    return f"{name}[{event.task_id}]" if event.task_id else name


def _held_by(holder: Any) -> str:
    if holder is None:
        return "the store is out of reach"
    if holder.closed:
        return "closed since its last holder was lost"
    facts = holder.facts
    if holder.ttl_left is None:
        return f"held by a lease that never expires (NO-TTL), owner {holder.owner!r}"
    name = facts.task_name or f"process {facts.pid} on {facts.host}"
    return f"held by {name}[{facts.task_id}]" if facts.task_id else f"held by {name}"


def _extras(event: events.Event) -> dict[str, Any]:
    told = getattr(event, "lease", None)
    lease = told if isinstance(told, Lease) else None
    facts = lease.claim.facts if lease is not None else None
    return {
        "key": event.key,
        "token": getattr(event, "token", lease.token if lease is not None else None),
        "owner": getattr(event, "owner", lease.owner if lease is not None else None),
        "task_id": facts.task_id if facts is not None else getattr(event, "task_id", None),
        "task_name": getattr(event.source, "name", None),
        "held_for": getattr(event, "held_for", lease.held_for if lease is not None else None),
        "waited_for": getattr(event, "waited", None),
    }
