"""
The clock that trust is measured with.

A lease is trusted on the holder's own clock. That clock must never step, and
where the system has one it also counts the time a host was suspended: a laptop or
a virtual machine that slept for an hour must find its leases lost when it wakes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since some fixed moment; never goes back."""


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def steady_clock() -> Clock:
    """The best clock of this system: `CLOCK_BOOTTIME` on Linux, else `time.monotonic`."""
    return _boot_time if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
