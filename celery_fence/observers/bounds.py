"""
A log that stays readable when very many facts of one kind come at once.

A store that restarts under five thousand leases makes five thousand lines, which all say the
same. So the first lines of a kind are written as they come; those that follow in the same
seconds are counted, and told of as one line when these are over. Nothing but the log is
bounded: each fact has its signal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from celery_fence.locking.clock import steady_clock
from celery_fence.locking.green import teller_here
from celery_fence.locking.native import new_lock, pause, start_thread

if TYPE_CHECKING:
    from celery_fence.locking.clock import Clock

SPAN = 10.0
"""Seconds for which lines of one kind are counted together."""

Tell = Callable[[int], object]
"""Called with the number of lines that weren't written."""


class Span:
    """`SPAN` seconds of one kind: how many lines may still be written, and how many were not."""

    __slots__ = ("ends", "held_back", "left", "tell")

    def __init__(self, ends: float, left: int) -> None:
        self.ends = ends
        self.left = left
        self.held_back = 0
        self.tell: Tell | None = None


def later(seconds: float, function: Callable[[], object]) -> None:
    """Call *function* in *seconds*, where the code may run that runs here."""
    tell = teller_here()

    def wait() -> None:
        pause(seconds)
        tell(function)

    start_thread(wait)


class Bounds:
    """
    Says which lines may be written, and has the others told of: with the next line, or by *later*.

    *later* has a function called in some seconds; it may raise RuntimeError.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        later: Callable[[float, Callable[[], object]], object] = later,
    ) -> None:
        self._clock = clock or steady_clock()
        self._later = later
        self._lock = new_lock()
        self._spans: dict[Hashable, Span] = {}

    def admit(self, kind: Hashable, limit: int, tell: Tell) -> bool:
        """
        Whether one more line of *kind* may be written, of which there may be *limit* within `SPAN` seconds.

        If not, *tell* is called at the end of these seconds, if it is that of the last line that wasn't written.
        """
        self.settle()
        now = self._clock()
        with self._lock:
            span = self._spans.setdefault(kind, Span(now + SPAN, limit))
            if span.left:
                span.left -= 1
                return True
            span.held_back += 1
            span.tell = tell
            wake = span.held_back == 1
        if wake:
            self._wake(span.ends - now)
        return False

    def settle(self) -> None:
        """Tell of the lines that weren't written in the seconds that are over by now."""
        with self._lock:
            now = self._clock()
            over = [kind for kind, span in self._spans.items() if span.ends <= now]
            spans = [self._spans.pop(kind) for kind in over]
        for span in spans:
            if span.tell is not None:
                span.tell(span.held_back)

    def _wake(self, seconds: float) -> None:
        try:
            self._later(seconds, self.settle)
        except RuntimeError:  # the machine has no thread to spare: the next line will do
            return
