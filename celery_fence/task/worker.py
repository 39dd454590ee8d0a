"""What a worker does for celery-fence: check before it starts, and free what its dead pool processes held."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.signals import worker_shutdown

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import Checkable
from celery_fence.task.burials import watch_deaths
from celery_fence.task.checks import check_app
from celery_fence.task.command_line import NoStore, WrongSettings
from celery_fence.task.install import runtime
from celery_fence.task.settings import FenceSettings

if TYPE_CHECKING:
    from celery_fence.locking.store import Store

logger = logging.getLogger(__name__)

LAST_RELEASES = 2.0
"""Seconds an ending worker waits for the release of what its killed pool processes held."""


class FenceStep(bootsteps.StartStopStep):
    """
    Checks the app's settings, its fenced tasks and the store before the pool starts.

    Raises `ConfigError` or `StoreUnavailable`, with which the worker ends. Once the
    pool has started, its processes are watched.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        findings = check_app(parent.app, processes=_processes(parent, options.get("autoscale")))
        errors = [finding.text for finding in findings if finding.level == "error"]
        for finding in findings:
            if finding.level == "warning":
                logger.warning(finding.text)
        if errors:
            raise WrongSettings("\n".join(("celery-fence can't start this worker:", *errors)))
        _reach_store(parent.app)

    def start(self, parent: Any) -> None:
        """Watch the pool's processes, until the last of them has gone."""
        deaths = watch_deaths(parent.app, parent.pool)
        if deaths is None:
            return

        def bury_the_last(**_: Any) -> None:
            deaths.buried(pid for pid in deaths.busy if _lives(pid))
            deaths.finish(LAST_RELEASES)

        worker_shutdown.connect(bury_the_last, sender=parent, weak=False)

    def stop(self, parent: Any) -> None:
        """Nothing: the pool ends later than this step, and its processes are watched to the end."""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _processes(worker: Any, autoscale: Any) -> int:
    """How many processes the pool may have; *autoscale* is ``"most,least"``, a pair or None, as Celery takes it."""
    if "prefork" not in str(getattr(worker.pool_cls, "__module__", worker.pool_cls)):
        return 1
    if not autoscale:
        return int(worker.concurrency or 1)
    most = autoscale.split(",")[0] if isinstance(autoscale, str) else autoscale[0]
    return int(most)


def _reach_store(app: Any) -> None:
    """Try the store once, so that a wrong URL, a missing permission or a dangerous setting shows now."""
    settings = FenceSettings.of(app)
    keeper = runtime(app)
    try:
        for warning in _check_store(keeper.store(settings.ttl)):
            logger.warning(warning)
    except StoreUnavailable as error:
        if settings.outage_policy == "run":
            logger.warning(
                "celery-fence can't use its store; tasks run without a lease until it can: %s", error
            )
            return
        msg = f"celery-fence can't use its lease store, so this worker would run nothing: {error}"
        raise NoStore(msg) from error
    finally:
        keeper.close()


def _check_store(store: Store) -> list[str]:
    """What the store has to say against itself; one that can't tell is asked a harmless question."""
    if isinstance(store, Checkable):
        return store.check()
    store.holder("celery-fence:start")
    return []
