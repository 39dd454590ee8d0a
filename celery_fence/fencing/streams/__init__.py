"""
WHOSE EVENT COUNTS: streams and messages.

At the producer's side `FencedStream` puts an event into a Redis stream only if no
newer token has written to its aggregate: comparing and appending are one script,
so what is in the stream is in the order of its tokens. At the consumer's side a
`TokenGate` drops what carries an older token than one already seen; the `Stamp`
that it looks at is read from the headers of a Celery or kombu message, or from the
fields of a stream entry.

The producer's side is the stronger one: it refuses those who ARE stale, where a
consumer can only refuse what ARRIVES late.
"""

from celery_fence.fencing.high_water import HighWaterStore, Mark, MemoryMarks, RedisMarks
from celery_fence.fencing.stamp import Stamp
from celery_fence.fencing.streams.stream import Appended, FencedStream
from celery_fence.fencing.token_gate import TokenGate

__all__ = [
    "Appended",
    "FencedStream",
    "HighWaterStore",
    "Mark",
    "MemoryMarks",
    "RedisMarks",
    "Stamp",
    "TokenGate",
]
