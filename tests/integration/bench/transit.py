"""
What went through the Redis broker, as the broker saw it; so what Kombu's transport has lost can be told from the rest.

Kombu takes a message off its queue and notes afterwards that it is unacknowledged. A worker that is killed in
between takes the message along, with or without celery-fence. Such a message was put into its queue
more often than it was noted; any other that is gone was lost by somebody who had it.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import redis

TASK_ID = re.compile(r'"id": "([^"]+)"')  # of a message's headers, the first of that name
SEEN = "everything so far was seen"


class Transit:
    """How often each task's message was put into *queue*, and how often it was noted as unacknowledged."""

    def __init__(self, queue: str) -> None:
        self.put: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()
        self._queue = queue

    def lost(self, task_ids: Iterable[str]) -> list[str]:
        """Those of *task_ids* that left the queue and were noted nowhere; ask when the broker has none left."""
        return [each for each in task_ids if self.noted[each] < self.put[each]]

    def follow(self, commands: Iterator[str]) -> None:
        """Count until the broker says that it is over."""
        for command in commands:
            if command == f"ECHO {SEEN}":
                return
            verb, key, *_ = [*command.split(maxsplit=2), ""]
            if verb in ("LPUSH", "RPUSH") and key == self._queue:
                self.put[TASK_ID.search(command)[1]] += 1
            elif verb == "HSET" and key == "unacked":
                self.noted[TASK_ID.search(command)[1]] += 1


@contextmanager
def watching_transit(client: redis.Redis, queue: str) -> Iterator[Transit]:
    """What goes through *queue* during the block; complete when it ends."""
    transit = Transit(queue)
    with client.monitor() as monitor:
        commands = (entry["command"] for entry in monitor.listen())
        thread = threading.Thread(target=transit.follow, args=(commands,), daemon=True)
        thread.start()
        try:
            yield transit
        finally:
            client.echo(SEEN)
            thread.join(10)
