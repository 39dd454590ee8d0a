"""Ctrl-C, SIGTERM and a closed terminal end the demo in order: everything is cleaned up, once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked the demo to end; *exit_code* is the usual one, 130 for Ctrl-C."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """
    Turn the first of these signals into `Stopped`.

    Later ones are ignored: cleaning up is short, and must not be cut off.
    """
    wanted = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, _stop) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # a handler that was not set from Python can't be put back
                signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the signals wait for the end of the block: what is started in it is not lost sight of."""
    waiting: list[int] = []
    caught = [number for number in SIGNALS if signal.getsignal(number) is _stop]
    for number in caught:
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, _stop)
        if waiting:
            _stop(waiting[0], None)


def _stop(number: int, _: FrameType | None) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(128 + number)
