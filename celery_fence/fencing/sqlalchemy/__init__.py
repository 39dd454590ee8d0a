"""
WHOSE WRITE COUNTS, in databases that SQLAlchemy talks to.

A fenced row keeps the token and the owner of its last write. An UPDATE or DELETE
carries the comparison in its own WHERE, so that between looking and writing there is
no gap: the database decides, while it holds the row. What matched no row is told
apart afterwards, in an extra SELECT that only the failure pays.

Three places work together. Before an object is flushed it is stamped (`stamping`), so
that the unit of work writes the token as any other column. Each statement of each
connection passes `statements`, where it gets its condition, whoever made it; a
statement that can't get one is refused. A session remembers under which leases its
transaction began (`guard`), and writes nothing that another execution left in it.

The scope gate (`gate`) and the database's own trigger (`trigger`) are here as far as
SQLAlchemy is concerned; their theory is told in `celery_fence.fencing`.
"""

from celery_fence.fencing.sqlalchemy.core import execute_fenced, fenced_delete, fenced_insert, fenced_update
from celery_fence.fencing.sqlalchemy.errors import RowChanged, RowGone
from celery_fence.fencing.sqlalchemy.gate import gates_table, pass_gate, pass_gate_async
from celery_fence.fencing.sqlalchemy.guard import fence
from celery_fence.fencing.sqlalchemy.marks import SqlMarks
from celery_fence.fencing.sqlalchemy.mixin import FencedMixin
from celery_fence.fencing.sqlalchemy.records import claim_async, once_async, records_table
from celery_fence.fencing.sqlalchemy.rule import fence_columns, fence_table
from celery_fence.fencing.sqlalchemy.trigger import fence_trigger

__all__ = [
    "FencedMixin",
    "RowChanged",
    "RowGone",
    "SqlMarks",
    "claim_async",
    "execute_fenced",
    "fence",
    "fence_columns",
    "fence_table",
    "fence_trigger",
    "fenced_delete",
    "fenced_insert",
    "fenced_update",
    "gates_table",
    "once_async",
    "pass_gate",
    "pass_gate_async",
    "records_table",
]
