"""What a writer sets on a row that has a fence trigger."""

from __future__ import annotations

from typing import Any

from celery_fence.fencing.attempt import Attempt
from celery_fence.fencing.writer import Mode, Shown, writer_of


def fencing_columns(lease: Shown | None = None, *, mode: Mode | None = None) -> dict[str, Any]:
    """
    The two columns that show the token of *lease*, or of the innermost one here, to a fence trigger.

    For an UPDATE that no guard writes: ``queryset.update(state="paid", **fencing_columns())``. Empty in
    mode ``off`` and for a run without a token in mode ``shadow``. The trigger compares tokens only: see
    to it that the lease is the one on the key of the rows.

    Raises:
        UnfencedWrite: there is no lease; or there is no token, in mode ``enforce``.

    """
    attempt = Attempt("A write with fencing_columns()", "fencing_columns(lease)")
    writer = writer_of(lease, mode=mode, attempt=attempt)
    if not writer.compares:
        return {}
    return {"last_fencing_token": writer.token, "last_fencing_owner": writer.owner}
