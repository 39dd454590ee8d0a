"""A gate for those who receive: it lets no older token through than it has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from celery_fence.errors import ConfigError, StaleToken
from celery_fence.fencing.attempt import check_lease
from celery_fence.fencing.high_water import HighWaterStore, Mark
from celery_fence.fencing.writer import Mode, Shown, checked_mode, let_pass, refuse, writer_of
from celery_fence.locking.events import Event


class TokenGate:
    """
    Compares what a consumer receives with the high-water mark of its scope, and raises that mark.

    For a consumer that takes the events of one scope in the order in which they
    were sent. An event that comes late, behind one of a newer token, is stale here
    even if its sender was no straggler when it sent it.

    *marks* is where the high-water marks live. What it raises comes through: then
    nothing is known and nothing may pass. *mode* is as for every guard. A refusal
    is told to *emit*; without one to the observers of the fenced task that runs here,
    else to the log.

    Raises:
        ConfigError: *marks* is no `HighWaterStore`, or there is no such mode.

    """

    def __init__(
        self, marks: HighWaterStore, *, mode: Mode = "enforce", emit: Callable[[Event], None] | None = None
    ) -> None:
        self._mode = checked_mode(mode) or "enforce"
        if self._mode != "off" and not callable(getattr(marks, "raise_mark", None)):
            raise ConfigError(
                f"A TokenGate takes a HighWaterStore such as RedisMarks(client), not {type(marks).__name__}."
            )
        self._marks = marks
        self._emit = emit

    def admits(self, stamp: Shown, *, what: str = "a message") -> bool:
        """
        Whether *stamp* may pass: False for a stale one, which is counted and logged. One call of the store.

        Equal tokens of one owner pass, so a redelivered message does. A lease will do as well.
        """
        try:
            self.check(stamp, what=what)
        except StaleToken:
            return False
        return True

    def check(self, stamp: Shown, *, what: str = "a message") -> None:
        """
        Go on only if *stamp* isn't stale. One call of the store. *what* it is is told with a refusal.

        Raises:
            StaleToken: a newer token has passed the gate of this scope.
            ConfigError: *stamp* is neither a stamp nor a lease. `Stamp.read` answers None
                for what carries none: whether that may pass isn't the gate's to say.

        """
        if self._mode == "off":
            return
        check_lease(stamp)
        writer = writer_of(stamp, mode=self._mode)
        if self._emit is not None:
            writer = replace(writer, emit=self._emit)
        if writer.token is None:
            let_pass(writer, scope=writer.key, what=what)
            return
        own = Mark(writer.token, writer.owner)
        seen = self._marks.raise_mark(writer.key, own)
        if own.is_stale_after(seen):
            refuse(writer, scope=writer.key, seen=seen.token, seen_owner=seen.owner, what=what)
