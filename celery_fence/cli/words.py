"""Times, durations and texts as people read them, and as programs do."""

from __future__ import annotations

from datetime import UTC, datetime

MINUTE, HOUR, DAY = 60, 3600, 86400
A_MOMENT = 10
"""Seconds below which tenths are of interest."""


def iso(epoch: float | None) -> str | None:
    """The moment *epoch* (seconds since the epoch) in ISO 8601, in UTC; None for None and for 0, the unknown."""
    return datetime.fromtimestamp(epoch, tz=UTC).isoformat() if epoch else None


def moment(epoch: float, now: float) -> str:
    """
    ``14:02:11 CET``, in this machine's time zone; with the date if it isn't today.

    Both are in seconds since the epoch.
    """
    when, today = (datetime.fromtimestamp(each, tz=UTC).astimezone() for each in (epoch, now))
    return when.strftime("%H:%M:%S %Z" if when.date() == today.date() else "%Y-%m-%d %H:%M:%S %Z")


def ago(epoch: float, now: float) -> str:
    """``14:02:11 CET (3 min 2 s ago)``."""
    return f"{moment(epoch, now)} ({duration(now - epoch)} ago)"


def duration(seconds: float) -> str:
    """``4.2 s``, ``41 s``, ``3 min 2 s``, ``2 h 5 min`` or ``3 d 4 h``."""
    seconds = max(seconds, 0.0)
    if seconds < A_MOMENT - 0.05:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return _two(whole // MINUTE, "min", whole % MINUTE, "s")
    if whole < DAY:
        return _two(whole // HOUR, "h", whole % HOUR // MINUTE, "min")
    return _two(whole // DAY, "d", whole % DAY // HOUR, "h")


def printable(text: str) -> str:
    r"""*text* with everything that could steer a terminal written out, as in ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _written_out(each) for each in text)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """``1 lease``, ``2 leases``."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def _two(large: int, unit: str, small: int, smaller_unit: str) -> str:
    return f"{large} {unit} {small} {smaller_unit}" if small else f"{large} {unit}"


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
