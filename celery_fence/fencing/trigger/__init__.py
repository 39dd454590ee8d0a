"""
The database itself refuses stale tokens: from any writer, also raw SQL and other languages.

A `FenceTrigger` is a trigger on one table that has the two columns of a fenced row,
``last_fencing_token`` and ``last_fencing_owner``. It looks at every row that a
statement is about to change:

| the statement | is | and in mode ``enforce`` |
|---|---|---|
| sets a higher token, or the row's own token and owner | fenced | goes through |
| sets a lower token, or the row's own with another owner | stale | fails |
| sets other columns only | unfenced | fails, unless ``unfenced="allow"`` |
| deletes the row | without a token: a DELETE can't show one | goes through, unless ``deletes="refuse"`` |

In mode ``shadow`` nothing fails, and each row that would have made it fail is written down in
the table ``fence_sightings``: to see who writes without a fence before it is enforced.

MySQL and MariaDB have no way to see that a statement doesn't set a column: there, what
sets other columns only looks like the next write of the run that wrote last, and goes through.

An INSERT has no older row to be compared with, and SQLite's REPLACE deletes without
asking triggers: the scope gate is for those.
"""

from celery_fence.fencing.trigger.columns import fencing_columns
from celery_fence.fencing.trigger.definition import FenceTrigger
from celery_fence.fencing.trigger.refusal import trigger_refusals

__all__ = ["FenceTrigger", "fencing_columns", "trigger_refusals"]
