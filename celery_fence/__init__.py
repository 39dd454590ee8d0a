"""
celery-fence: fenced leases on business keys for Celery tasks.

```python
@app.task(base=FencedTask, lock_key="tenant:<tenant_id>:sync")
def sync_tenant(tenant_id, *, fencing_token): ...
```

The theory is told in [`celery_fence.locking`][celery_fence.locking]; what is
promised, and what isn't, in docs/guarantees.md.
"""

from celery_fence import signals
from celery_fence.errors import (
    ConfigError,
    Contended,
    DeadLettered,
    FenceError,
    LeaseLost,
    LockKeyError,
    ScopeMismatch,
    StaleToken,
    StoreUnavailable,
    UnfencedWrite,
)
from celery_fence.locking import policies
from celery_fence.locking.current import current_lease
from celery_fence.locking.lease import Lease
from celery_fence.task.fenced import FencedTask
from celery_fence.task.hold import hold
from celery_fence.task.skip import is_skipped

__all__ = [
    "ConfigError",
    "Contended",
    "DeadLettered",
    "FenceError",
    "FencedTask",
    "Lease",
    "LeaseLost",
    "LockKeyError",
    "ScopeMismatch",
    "StaleToken",
    "StoreUnavailable",
    "UnfencedWrite",
    "current_lease",
    "hold",
    "is_skipped",
    "policies",
    "signals",
]
