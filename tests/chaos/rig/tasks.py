"""The fenced tasks of a round: one body under every policy this version has."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_fence import FencedTask, policies
from rig import bodies

LOST_DELAY = 0.0


def quick_retry(**limits: Any) -> policies.Retry:
    """A retry that suits a TTL of a second."""
    return policies.Retry(min_delay=0.05, max_delay=0.4, **limits)


def variants() -> dict[str, dict[str, Any]]:
    """Task name -> options; all share the keys."""
    return {
        "retry": {"miss_policy": quick_retry()},
        "requeue": {"miss_policy": policies.Requeue()},
        "skip": {"miss_policy": policies.Skip()},
        "dead_letter": {"miss_policy": policies.DeadLetter()},
        "raise": {"miss_policy": policies.Raise()},
        "bounded": {"miss_policy": quick_retry(max_attempts=4)},
        "flag": {"miss_policy": quick_retry(), "lost_policy": "flag"},
        "fails": {"miss_policy": quick_retry(), "lost_policy": "raise"},
    }


def add_tasks(app: Celery) -> None:
    """Register every variant on *app*."""
    for name, options in variants().items():
        app.task(bind=True, base=FencedTask, lock_key="<key>", name=name, **options)(bodies.work)


def policies_of_tasks() -> dict[str, str]:
    """Task name -> its miss policy as it is written, for the record of a run."""
    return {name: str(options["miss_policy"]) for name, options in variants().items()}
