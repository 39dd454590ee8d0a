"""The columns of a fenced row, for models whose table has a fence trigger."""

from __future__ import annotations

from typing import Any

from django.db import models

from celery_fence.fencing.trigger.columns import fencing_columns
from celery_fence.fencing.writer import LONGEST_OWNER, Mode, Shown


def token_field() -> Any:
    """The highest token that the row was written with; 0 before the first."""
    return models.BigIntegerField(default=0, editable=False)


def owner_field() -> Any:
    """The owner of that token."""
    return models.CharField(max_length=LONGEST_OWNER, null=True, editable=False)


class FencedModel(models.Model):
    """
    An abstract model with the two columns that a fence trigger looks at.

    An instance that was loaded before another run wrote has that row's old token: the
    trigger refuses its `save`.
    """

    last_fencing_token = token_field()
    last_fencing_owner = owner_field()

    class Meta:
        """No table of its own."""

        abstract = True

    def fence(self, lease: Shown | None = None, *, mode: Mode | None = None) -> None:
        """Show the token of *lease*, or of the innermost one here, at the next `save`. Raises as `fencing_columns`."""
        for column, value in fencing_columns(lease, mode=mode).items():
            setattr(self, column, value)
