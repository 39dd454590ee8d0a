"""
Celery-style signals: connect to be told what the fence does.

The sender is the task (or the app for a bare `hold`). Every signal carries ``key=``
and either ``lease=`` or the facts of its event. Some are sent from the heartbeat's
thread: `lease_renewed`, `lease_renewal_failed` and `lease_lost`; return quickly there.

```python
from celery_fence import signals


@signals.lease_lost.connect
def page_somebody(sender, key, lease, reason, **_): ...
```
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

lease_acquired = Signal(name="lease_acquired", providing_args={"key", "lease", "waited"})
lease_missed = Signal(
    name="lease_missed",
    providing_args={"key", "holder", "task_id", "outcome", "delay", "attempt", "waited", "error"},
)
lease_renewed = Signal(name="lease_renewed", providing_args={"key", "lease", "lag", "reinstated", "failures"})
lease_renewal_failed = Signal(
    name="lease_renewal_failed", providing_args={"key", "lease", "error", "trusted_for", "attempt"}
)
lease_lost = Signal(name="lease_lost", providing_args={"key", "lease", "reason"})
lease_released = Signal(
    name="lease_released", providing_args={"key", "lease", "outcome", "held_for", "error"}
)
stale_write_refused = Signal(
    name="stale_write_refused",
    providing_args={"key", "lease", "scope", "token", "owner", "seen", "seen_owner", "what", "refused"},
)
task_skipped = Signal(name="task_skipped", providing_args={"key", "holder", "task_id", "record", "reason"})
task_dead_lettered = Signal(
    name="task_dead_lettered",
    providing_args={"key", "holder", "task_id", "queue", "reason", "attempts", "waited"},
)
