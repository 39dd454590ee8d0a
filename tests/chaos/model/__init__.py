"""
The protocol model: every state that the questions of a store can lead to, explored.

A *world* (`world.py`) is one key in a store, up to three owners that ask for it, and a
place that they write to. From a world lead *steps* (`steps.py`, `faults.py`): an owner
asks, starts, renews, writes, ends or dies; one of its questions arrives, for the first
time or again; a tick passes; data are lost, the operator releases by force, the clock
steps. The checker (`explore.py`) takes every step from every world, breadth first, and
asks after each whether a promise is broken (`promises.py`). What it finds first is told
in the fewest steps (`trace.py`).

Nothing bounds the length of a run, nor how often a message arrives or a fault strikes:
worlds that differ only in the names of owners, or in how large tokens are, are one, and
so there is an end of them. Bounded are the owners, who ask once each (a restart is
another owner), and the TTL, of three ticks or four.

How it is tied to the product: what the store does in a step is a pure function
(`server.py`). Every question that comes up in an explored world becomes a vector
(`vectors.py`), and each is put to the Redis scripts and to the memory store, written
into that very state (`redis_keeper.py`, `memory_keeper.py`). The random conversations of
`tests/property/test_store_machine.py` use the same functions. What a process does with
an answer (`clients.py`) is a model of `celery_fence.locking`, which has its own tests.

Whether the checker can tell is shown by rules with a line taken out (`mutations.py`),
and what isn't promised by traces that lead there (`limits.py`).
"""
