"""
FOR USERS' TESTS AND OURS: what one needs to see a fence work, and to see it under faults.

- [`held`][celery_fence.testing.holding.held]: somebody else who holds a key, for the time of a block.
- [`servers`][celery_fence.testing.servers]: a real Valkey or Redis on a free port, for the time of a test.
- [`proxy`][celery_fence.testing.proxy]: a TCP proxy that cuts, drops and delays.
- [`clock`][celery_fence.testing.clock]: a clock that only moves when told to.
- [`contract`][celery_fence.testing.contract]: what every lease store promises, as tests to inherit.

Nothing here is needed at run time, and nothing here is imported by the rest of celery-fence.
"""

from celery_fence.testing.holding import held

__all__ = ["held"]
