"""
Leases in the memory of one process: for tests, eager mode and single-process workers.

The rules are those of the Redis scripts, one method for each question, under one
lock. Stores of the same URL and prefix see the same leases, for as long as one of
them is alive; another process never sees them, which is why a worker with more than
one process refuses this store (`single_process`). A fork takes a copy with it.
"""

from celery_fence.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
