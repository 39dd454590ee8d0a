"""
What SQLAlchemy calls stale data, told apart.

Both are its `StaleDataError`, which code around a session already catches, and ours.
"""

from __future__ import annotations

from sqlalchemy.orm.exc import StaleDataError

from celery_fence.errors import FenceError


class RowGone(FenceError, StaleDataError):
    """A fenced row that was to be changed isn't there any more; roll back."""


class RowChanged(FenceError, StaleDataError):
    """
    A fenced row was changed since it was read, by an older holder or a writer without a fence.

    Not stale: this run's token is the newest. Roll back, read again and write again.
    """
