"""
The chaos rig: real workers, a faulty world, and a record of everything that matters.

A *plan* is made from a seed: which workers there are, what is sent, which faults strike when. A
*round* plays it: a lease server behind one proxy for each worker, a broker that is never faulted,
a SQL ledger of guarded writes, and task bodies that hold their keys for a while and write. Each
process appends to its own *history*. After the last fault the world heals, everything that was
sent has to end, and the *checkers* read histories and ledger and say which promise was broken.

The same seed gives the same plan. It doesn't give the same run: when a process is scheduled, and so
which of two askers comes first, can't be replayed. A fault that needs a victim takes it from who is there
(who holds a lease now), by a roll that is part of the plan.
"""
