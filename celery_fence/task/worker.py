"""What a worker does for celery-fence when it starts: check, and refuse to start half-configured."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from celery_fence.errors import ConfigError, StoreUnavailable
from celery_fence.task.checks import check_app
from celery_fence.task.install import runtime
from celery_fence.task.settings import FenceSettings

logger = logging.getLogger(__name__)


class FenceStep(bootsteps.Step):
    """
    Checks the app's settings, its fenced tasks and the store before the pool starts.

    Raises `ConfigError` or `StoreUnavailable`, with which the worker ends.
    """

    requires = ("celery.worker.components:Timer",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        findings = check_app(parent.app, processes=_processes(parent, options.get("autoscale")))
        errors = [finding.text for finding in findings if finding.level == "error"]
        for finding in findings:
            if finding.level == "warning":
                logger.warning(finding.text)
        if errors:
            raise ConfigError("celery-fence can't start this worker: " + " | ".join(errors))
        _reach_store(parent.app)


def _processes(worker: Any, autoscale: Any) -> int:
    """How many processes the pool may have; *autoscale* is ``"most,least"``, a pair or None, as Celery takes it."""
    if "prefork" not in str(getattr(worker.pool_cls, "__module__", worker.pool_cls)):
        return 1
    if not autoscale:
        return int(worker.concurrency or 1)
    most = autoscale.split(",")[0] if isinstance(autoscale, str) else autoscale[0]
    return int(most)


def _reach_store(app: Any) -> None:
    """Ask the store one harmless question, so that a wrong URL or a missing permission shows now."""
    settings = FenceSettings.of(app)
    keeper = runtime(app)
    try:
        keeper.store(settings.ttl).holder("celery-fence:start")
    except StoreUnavailable as error:
        if settings.outage_policy == "run":
            logger.warning(
                "celery-fence can't reach its store; tasks run without a lease until it can: %s", error
            )
            return
        msg = f"celery-fence can't reach its lease store, so this worker would run nothing: {error}"
        raise StoreUnavailable(msg) from error
    finally:
        keeper.close()
