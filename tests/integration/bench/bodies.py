"""
The task bodies: they do what the caller's *plan* says and note it in the ledger.

A plan is a plain dictionary, so that it travels in the message:

* how the body holds its key: ``gate`` (wait until the test opens it), ``spin`` (the
  same, burning CPU), ``socket`` (a blocking read), ``sleep`` (one long sleep),
  ``until_lost`` (ask the lease before each small step); with ``once``, only the
  first run of the message holds it;
* how it ends: ``then``, one of `ENDINGS`, with ``value``, ``times``.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import current_app
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from bench.ledger import Gate, Ledger

Plan = dict[str, Any]


def ledger_of(app: Any) -> Ledger:
    """The ledger of the world that *app* lives in."""
    return Ledger(app.conf.bench_ledger)


def gate_of(app: Any, name: str) -> Gate:
    """The gate *name* of the world that *app* lives in."""
    return Gate(Path(app.conf.bench_gates) / name)


def work(self: Any, key: str, plan: Plan | None = None, *, fencing_token: int | None = None) -> Any:
    """Note the start, hold the key as the plan says, end as the plan says, and note that."""
    ledger, plan = ledger_of(self.app), plan or {}
    run = {"run": uuid.uuid4().hex, "key": key, "token": fencing_token, "task_id": self.request.id}
    ledger.note("start", **run, **_facts(self))
    try:
        _hold(self, key, plan)
        value = ENDINGS[plan.get("then", "return")](self, plan)
    except BaseException as failure:
        ledger.note("end", **run, outcome=type(failure).__name__)
        raise
    ledger.note("end", **run, outcome="return")
    return value


def look(self: Any, key: str, *, fencing_token: int | None = None) -> dict[str, Any]:
    """What a body can see of its lease: from itself, from below, and from a helper thread."""
    from celery_fence import current_lease

    lease, seen = self.lease, {}
    helper = threading.Thread(target=lambda: seen.update(checked=lease.check() is None, token=lease.token))
    helper.start()
    helper.join(10)
    below = current_lease()
    return {
        "injected": fencing_token,
        "token": lease.token,
        "key": lease.key,
        "same_below": below is not None and below.token == lease.token and below.owner == lease.owner,
        "trusted_for": lease.trusted_for,
        "verified": lease.verify() is not False,
        "lost": lease.lost,
        "helper": seen,
    }


def join(self: Any, results: Any, key: str = "join") -> Any:
    """A chord's body or a link: notes what it was given, and gives it back."""
    ledger_of(self.app).note("join", key=key, results=results, task_id=self.request.id)
    return results


def errback(request: Any, failure: Any, traceback: Any, key: str = "errback") -> None:
    """An error callback: notes whose failure it was told of."""
    ledger_of(current_app).note(
        "errback", key=key, of=getattr(request, "id", request), failure=type(failure).__name__
    )


def _facts(task: Any) -> dict[str, Any]:
    request = task.request
    return {
        "task": task.name,
        "retries": request.retries,
        "redelivered": bool((request.delivery_info or {}).get("redelivered")),
        "kwargs": sorted(request.kwargs or {}),
        "thread": threading.get_ident(),
        "headers": {name: value for name, value in (request.headers or {}).items() if isinstance(name, str)},
        "message": {name: getattr(request, name, None) for name in MESSAGE_FIELDS},
    }


MESSAGE_FIELDS = (
    "args",
    "argsrepr",
    "correlation_id",
    "expires",
    "group",
    "group_index",
    "ignore_result",
    "kwargsrepr",
    "lang",
    "root_id",
    "shadow",
    "stamped_headers",
    "stamps",
    "timelimit",
    "errbacks",
    "callbacks",
    "chord",
    "chain",
    "reply_to",
    "replaced_task_nesting",
    "delivery_info",
)


def _hold(task: Any, key: str, plan: Plan) -> None:
    ledger = ledger_of(task.app)
    if plan.get("once") and len(ledger.facts("start", task_id=task.request.id)) > 1:
        return
    for name, hold in HOLDS.items():
        if name in plan:
            ledger.note("holding", key=key, how=name, task_id=task.request.id)
            hold(task, plan[name])


def _socket(task: Any, seconds: float) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(seconds)
        ours.recv(1)


def _until_lost(task: Any, seconds: float) -> None:
    """What a careful body does: ask before every step."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        task.lease.check()
        time.sleep(0.02)


HOLDS: dict[str, Callable[[Any, Any], None]] = {
    "gate": lambda task, name: gate_of(task.app, name).wait(),
    "spin": lambda task, name: gate_of(task.app, name).spin(),
    "socket": _socket,
    "sleep": lambda task, seconds: time.sleep(seconds),
    "until_lost": _until_lost,
}


def _retry(task: Any, plan: Plan) -> Any:
    if task.request.retries < plan.get("times", 1):
        raise task.retry(countdown=plan.get("countdown", 1))
    return plan.get("value")


def _fail_then_return(task: Any, plan: Plan) -> Any:
    if task.request.retries < plan.get("times", 1):
        raise ValueError(plan.get("value", "as planned"))
    return plan.get("value")


def _raise(failure: BaseException) -> Any:
    raise failure


def _on_gate(task: Any, plan: Plan) -> Any:
    """Retry first, then wait: the retry is published while this body still holds its key."""
    if task.request.retries:
        return plan.get("value")
    try:
        task.retry(countdown=1)
    finally:
        ledger_of(task.app).note("retry_sent", task_id=task.request.id)
        gate_of(task.app, plan["after"]).wait()


ENDINGS: dict[str, Callable[[Any, Plan], Any]] = {
    "return": lambda task, plan: plan.get("value"),
    "type": lambda task, plan: type(plan["value"]).__name__,
    "token": lambda task, plan: task.lease.token,
    "raise": lambda task, plan: _raise(ValueError(plan.get("value", "as planned"))),
    "ignore": lambda task, plan: _raise(Ignore()),
    "reject": lambda task, plan: _raise(Reject("as planned", requeue=False)),
    "exit": lambda task, plan: _raise(SystemExit(3)),
    "soft_limit": lambda task, plan: _raise(SoftTimeLimitExceeded()),
    "vanish": lambda task, plan: os._exit(9),
    "retry": _retry,
    "fail_then_return": _fail_then_return,
    "retry_then_wait": _on_gate,
    "unserialisable": lambda task, plan: object(),
}
