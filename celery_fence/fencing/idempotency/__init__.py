"""
What is done once: a record of finished work, in the database in which its effect lies.

A lease limits overlap, a record limits repeats. The record's row is written by the same
transaction as the effect, so that both are committed or neither:

    with Session.begin() as session:
        record = claim(session)                 # the row is locked until the commit
        session.add(Charge(...))                # the effect
        return record.complete({"charged": 5})  # the row says: done, with this result

    killed before the commit     nothing has happened; the next run does all of it
    killed after the commit      `claim` raises AlreadyDone with the result; nothing is done again

`claim` is one statement, an upsert: two transactions that claim one key wait for each
other, and the second finds what the first has committed. A claim that was committed
without its completion (work in several transactions, whose run died in between) is taken
over by a run with a higher token of the same lock key; a run with a lower one is stale.

`once` does the same for one step inside a run, such as one item of a batch.

The connections are those that the gate takes (`celery_fence.fencing.gate`), whose places
run the statements: `postgresql`, `mysql` and `sqlite` hold them, under the same names each.
"""

from celery_fence.fencing.idempotency.claiming import Claimed, claim
from celery_fence.fencing.idempotency.record import Record
from celery_fence.fencing.idempotency.result import LARGEST_RESULT
from celery_fence.fencing.idempotency.shelf import delete_record, delete_records, find_record, list_records
from celery_fence.fencing.idempotency.step import once
from celery_fence.fencing.idempotency.table import create_records, record_ddl

__all__ = [
    "LARGEST_RESULT",
    "Claimed",
    "Record",
    "claim",
    "create_records",
    "delete_record",
    "delete_records",
    "find_record",
    "list_records",
    "once",
    "record_ddl",
]
