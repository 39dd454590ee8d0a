"""The fenced tasks of the bench: one body under every policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from bench import bodies
from celery_fence import FencedTask, hold, policies, signals

QUICK = {"min_delay": 0.1, "max_delay": 0.5}
FENCE_SIGNALS = (
    "lease_acquired",
    "lease_missed",
    "lease_renewed",
    "lease_renewal_failed",
    "lease_lost",
    "lease_released",
    "task_skipped",
    "task_dead_lettered",
)


def the_first_argument(arguments: Mapping[str, Any]) -> Any:
    """What `skip_callable` gives as its result: C08, hand on what came before."""
    return {"skipped_for": arguments["key"]}


def quick_retry(**limits: Any) -> policies.Retry:
    """A `Retry` that suits a test's patience."""
    return policies.Retry(**QUICK, **limits)


def variants() -> dict[str, dict[str, Any]]:
    """Task name -> options; all of them share the keys ``job:<key>``."""
    return {
        "retry": {"miss_policy": quick_retry()},
        "default": {},
        "bounded": {"miss_policy": quick_retry(max_wait=1.5)},
        "attempts": {"miss_policy": quick_retry(max_attempts=2)},
        "bounded_skip": {"miss_policy": quick_retry(max_attempts=2, then=policies.Skip())},
        "requeue": {"miss_policy": "requeue"},
        "dead_letter": {"miss_policy": "dead_letter"},
        "skip": {"miss_policy": "skip"},
        "skip_continue": {"miss_policy": policies.Skip(chain="continue")},
        "skip_value": {"miss_policy": policies.Skip(result="nothing to do", chain="continue")},
        "skip_none": {"miss_policy": policies.Skip(result=None)},
        "skip_callable": {"miss_policy": policies.Skip(result=the_first_argument, chain="continue")},
        "raise": {"miss_policy": "raise"},
        "auto": {
            "miss_policy": quick_retry(),
            "autoretry_for": (ValueError,),
            "max_retries": 1,
            "retry_backoff": False,
            "default_retry_delay": 1,
        },
        "auto_all": {
            "miss_policy": quick_retry(),
            "lost_policy": "raise",
            "autoretry_for": (Exception,),
            "max_retries": 3,
            "default_retry_delay": 1,
        },
        "early_dead_letter": {"miss_policy": "dead_letter", "acks_late": False},
        "other_dead_letter": {"miss_policy": policies.DeadLetter(queue="other.dead")},
        "early": {"miss_policy": quick_retry(), "acks_late": False},
        "lost_retry": {"miss_policy": quick_retry(), "lost_policy": "retry"},
        "lost_raise": {"miss_policy": quick_retry(), "lost_policy": "raise"},
        "lost_flag": {"miss_policy": quick_retry(), "lost_policy": "flag"},
        "outage_retry": {"miss_policy": "skip", "outage_policy": quick_retry()},
        "outage_raise": {"miss_policy": "skip", "outage_policy": "raise"},
        "outage_run": {"miss_policy": "skip", "outage_policy": "run"},
        "soft_limited": {"miss_policy": quick_retry(), "soft_time_limit": 1},
        "hard_limited": {"miss_policy": quick_retry(), "time_limit": 1},
        "shortly_held": {
            "miss_policy": quick_retry(),
            "lock_ttl": 1.2,
            "lock_max_hold": 2.5,
            "lost_policy": "raise",
        },
        "survivor": {"miss_policy": quick_retry(), "reject_on_worker_lost": True},
    }


def add_fenced_tasks(app: Celery) -> None:
    """Register every variant on *app*."""
    for name, options in variants().items():
        app.task(bind=True, base=FencedTask, lock_key="job:<key>", name=name, **options)(bodies.work)
    app.task(bind=True, base=FencedTask, lock_key="job:<key>", name="look")(bodies.look)
    app.task(base=FencedTask, lock_key="job:<key>", name="tokenless")(tokenless)
    for name, policy in {"once": quick_retry(), "once_skip": "skip"}.items():
        app.task(
            bind=True,
            base=FencedTask,
            lock_key="job:<key>",
            idempotency_key="order:<plan[order]>",
            miss_policy=policy,
            name=name,
        )(bodies.work)
    app.task(bind=True, base=FencedTask, lock_key="outer:<outer>", name="holds", miss_policy=quick_retry())(
        holds
    )
    app.task(bind=True, base=Watchful, lock_key="job:<key>", name="watchful", miss_policy="skip")(bodies.work)


class Watchful(FencedTask):
    """A user's base class with both hooks of celery-fence."""

    abstract = True

    def on_miss(self, miss: policies.Miss, args: Any, kwargs: Any) -> None:
        """Note what the hook was told."""
        bodies.ledger_of(self.app).note(
            "on_miss", key=miss.key, args=list(args), holder=miss.holder.facts.task_name
        )

    def on_lease_lost(self, lease: Any) -> None:
        """Note what the hook was told."""
        bodies.ledger_of(self.app).note("on_lease_lost", key=lease.key, token=lease.token)


def holds(self: Any, outer: str, key: str) -> list[int]:
    """Guard only the side effect: a `hold` inside a fenced task, whose miss is the task's miss."""
    with hold("job:<key>", {"key": key}) as lease:
        return [self.lease.token, lease.token]


def tokenless(key: str) -> str:
    """A body that doesn't ask for the token gets none."""
    return key


def listen_to_fence(app: Celery) -> None:
    """Write celery-fence's signals of this process to the ledger, under their own names."""
    for name in FENCE_SIGNALS:
        _write_down(name, getattr(signals, name), app)


def _write_down(name: str, signal: Any, app: Celery) -> None:
    def receiver(sender: Any = None, key: str | None = None, outcome: str | None = None, **_: Any) -> None:
        task = getattr(sender, "name", str(sender))
        bodies.ledger_of(app).note(name, fence_key=key, task=task, outcome=outcome)

    signal.connect(receiver, weak=False)
