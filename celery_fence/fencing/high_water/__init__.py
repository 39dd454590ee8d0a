"""
WHAT HAS BEEN SEEN. The high-water mark of a scope: the highest token so far, and its owner.

A `HighWaterStore` answers one question, in one atomic step: raise the mark of this
scope to this token, unless a newer one was here. `TokenGate` asks it for consumers
of messages, the middleware in `celery_fence.fencing.http` for HTTP services.

| store | its marks live in |
|---|---|
| `MemoryMarks` | this process: for one consumer process, and for tests |
| `RedisMarks` | Redis or Valkey, shared by all consumers |
| `celery_fence.fencing.sqlalchemy.SqlMarks` | the gate table of a database |

A mark that is lost (a flush, an eviction, its retention is over) lets one older
token pass, until a newer one comes by: keep marks for longer than a frozen sender
may sleep.
"""

from celery_fence.fencing.gate.mark import Mark
from celery_fence.fencing.high_water.memory import MemoryMarks
from celery_fence.fencing.high_water.redis import RedisMarks
from celery_fence.fencing.high_water.store import RETENTION, HighWaterStore

__all__ = ["RETENTION", "HighWaterStore", "Mark", "MemoryMarks", "RedisMarks"]
