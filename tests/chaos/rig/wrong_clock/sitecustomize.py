"""
Mends `time.sleep` in a process that runs under libfaketime.

Python runs this first, in a worker whose PYTHONPATH has this folder. Python's sleep is an absolute one on the
monotonic clock, and libfaketime 0.9.10 (Debian 12) takes that for a moment of the faked clock: the sleep fails with
EINVAL or lasts an hour. A lock that nobody releases waits for the right time.
"""

import time
from _thread import allocate_lock

LONGEST = 3600.0


def sleep(seconds: float) -> None:
    """As `time.sleep`; signal handlers run meanwhile, and what they raise ends it."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    lock = allocate_lock()
    lock.acquire()
    if seconds:
        lock.acquire(timeout=min(seconds, LONGEST))


time.sleep = sleep
