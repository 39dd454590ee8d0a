"""
The scope gate: one row for each scope, which a transaction passes before it writes.

A guard on a row protects that row. A transaction that inserts, or that touches many
rows and tables, needs one place where its token is compared: the gate. Its row keeps
the highest token that has passed. Passing is one statement that compares, moves the
mark up and keeps the row locked until the transaction ends:

    A, token 5                      B, token 6
    begin; pass the gate
    insert ...                      begin; pass the gate   (waits for A's row lock)
    commit                          ... goes on
                                    insert ...; commit
    begin; pass the gate: refused, StaleToken, before its first statement

So a stale writer changes nothing, two holders can't interleave within a scope, and a
rollback leaves the mark as it was: it is a row like any other. The check is in the
statement that locks, never in a read before it: under REPEATABLE READ, MySQL would
answer a plain read from an old snapshot.

Where the database can't order two transactions (PostgreSQL and newer MariaDB from
REPEATABLE READ on, a snapshot of SQLite that became old, a deadlock) it says so with an
error of its own, which comes out as it is: not `StaleToken`, but "run the transaction again".

`postgresql`, `mysql` and `sqlite` hold the statements, under the same names each.
"""

from celery_fence.fencing.gate.passing import pass_gate
from celery_fence.fencing.gate.table import create_gates, gate_ddl

__all__ = ["create_gates", "gate_ddl", "pass_gate"]
