"""
Telling observers, hooks and the log of what the heartbeat notices, in a thread of its own.

What is told runs other people's code: a receiver that asks a metrics server, a log handler whose pipe is full. Were the
heartbeat or a renewer to wait for that, the leases of the whole process would be renewed too late, and nobody would
notice that the trust in one has ended. So those threads only say what is to be told, and go on.

Told in order, each thing once at most: what strikes the thread that tells is the end of the one call it is in.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery_fence.locking.duty import Duty, on_duty
from celery_fence.locking.native import Wakeable, new_lock, pause

logger = logging.getLogger(__name__)

LINGER = 1.0
"""Seconds the idle thread waits for another thing to tell before it ends."""

ROOM = 10_000
"""How many things may wait to be told: enough for a receiver that is slow, and no leak for one that hangs."""

UNTOLD = "%d signals and log lines about leases couldn't be told: a receiver of a signal, a hook or a log handler hung"


Call = tuple[Callable[..., object], tuple[Any, ...]]


class Teller:
    """Calls what others want called, one after the other."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._bell = Wakeable()
        self._duty = Duty(self._turn, self._take_back, self._complain)
        self._calls: deque[Call] = deque()
        self._telling = False
        self._untold = 0

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        """Have *function* called with *args* soon. Returns at once, from any thread."""
        with self._lock:
            if len(self._calls) >= ROOM:
                self._untold += 1
                return
            self._calls.append((function, args))
            with suppress(RuntimeError):  # the machine has no thread to spare: who tells next tries again
                self._duty.keep()
        self._bell.ring()

    def finish(self, seconds: float) -> None:
        """Wait until all is told, for at most *seconds*: the process is about to end."""
        end = time.monotonic() + seconds
        while self._is_busy() and time.monotonic() < end:
            pause(0.01)

    def end(self, seconds: float) -> None:
        """
        End the thread, within *seconds* unless what it calls hangs; it starts again with the next thing to tell.

        Called as the interpreter ends: no thread of ours should run then.
        """
        with self._lock:
            self._duty.end()
        end = time.monotonic() + seconds
        while self._duty.turning and time.monotonic() < end:
            self._bell.ring()
            pause(0.01)

    def _is_busy(self) -> bool:
        with self._lock:
            return self._telling or bool(self._calls)

    # --- in the teller's own thread ------------------------------------------------------

    def _turn(self) -> None:
        while call := self._take():
            function, args = call
            function(*args)
        if not self._bell.wait(LINGER):
            self._sign_off()

    def _take(self) -> Call | None:
        with self._lock:
            call = self._calls.popleft() if self._calls else None
            self._telling = call is not None
            untold, self._untold = self._untold, 0
        if untold:
            logger.warning(UNTOLD, untold)
        return call

    def _sign_off(self) -> None:
        """End, unless there is something to tell at the last moment."""
        with self._lock:
            if not self._calls:
                self._duty.end()

    def _take_back(self) -> None:
        """What was being told isn't told again."""

    def _complain(self, error: BaseException) -> None:
        logger.error("Telling of a lease broke, and goes on", exc_info=error)


_process_tellers: dict[int, Teller] = {}


def process_teller() -> Teller:
    """The teller of this process; a fork has one of its own."""
    pid = os.getpid()
    return _process_tellers.get(pid) or _process_tellers.setdefault(pid, Teller())


def aside(function: Callable[..., object], *args: Any) -> None:
    """Call *function* here and now; in a thread that mustn't wait for it, have the teller call it."""
    if on_duty():
        process_teller().tell(function, *args)
    else:
        function(*args)
