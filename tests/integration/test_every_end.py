"""
Every end of a run, in every pool: the table of docs/guarantees.md, as a loop over ends and pools.

Each body looks up the holder of its key on the lease server again and again, and once more in its
last line. So for each end the test sees that the key was held as long as the body could
run and is free right afterwards (the TTL is longer than any test), what was stored, and what
became of the message. What Celery has no means for in a pool is played all the same: then the run goes
on, and keeps its key.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import pytest
from bench.every_end import add_tasks
from bench.messages import is_left
from bench.waiting import wait_until
from bench.world import Bench
from celery import chord
from celery.result import AsyncResult

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
TTL = 30.0
SOON = 3.0
"""Seconds for a release to show on a busy machine; far from the TTL."""
BEYOND_THE_LIMIT = 1.3
"""Seconds into a body after which a limit of one second has struck, if it ever will."""


@dataclass(frozen=True)
class Outcome:
    """
    What an end leaves: the stored *state* and *result* (a value, or a failure's class by name), how each
    body ended that ran for the message, and whether the broker still has the message.
    """

    state: str
    result: Any
    bodies: tuple[str, ...]
    is_left: bool = False
    goes_on: bool = False
    """The blow doesn't stop the body: it ends when the test lets it."""
    dies: bool = False
    """The process ends without a last look."""
    races: bool = False
    """Celery's main process stores REVOKED at the same time: the later one stays."""


@dataclass(frozen=True)
class End:
    """How a run is brought to its end, and what that leaves in most pools, and in others."""

    usually: Outcome
    plan: dict[str, Any]
    task: str = "watched"
    signal: str | None = None
    otherwise: dict[str, Outcome] = field(default_factory=dict)

    def outcome(self, pool: str) -> Outcome:
        return self.otherwise.get(pool, self.usually)


UNTOUCHED = Outcome("SUCCESS", "done", ("return",), goes_on=True)
TERMINATED = Outcome("REVOKED", "TaskRevokedError", ("SystemExit",))
KILLED_GREENLET = Outcome("REVOKED", "TaskRevokedError", ("GreenletExit",))
SOFT = Outcome("FAILURE", "SoftTimeLimitExceeded", ("SoftTimeLimitExceeded",))
LIMITED = {"watch": "gate", "value": "done"}


def terminated(prefork: Outcome, number: str) -> End:
    """``revoke(terminate=True)``: a signal for a pool process, a kill for a greenlet, nothing elsewhere."""
    others = {"prefork": prefork, "gevent": KILLED_GREENLET, "eventlet": KILLED_GREENLET}
    return End(UNTOUCHED, LIMITED, signal=number, otherwise=others)


ENDS = {
    "return": End(Outcome("SUCCESS", "done", ("return",)), {"value": "done"}),
    "exception": End(Outcome("FAILURE", "ValueError", ("ValueError",)), {"then": "raise"}),
    "retry": End(Outcome("SUCCESS", "done", ("Retry", "return")), {"then": "retry", "value": "done"}),
    "Ignore": End(Outcome("PENDING", None, ("Ignore",)), {"then": "ignore"}),
    "Reject": End(Outcome("FAILURE", "Reject", ("Reject",)), {"then": "reject"}),
    "Reject and requeue": End(Outcome("SUCCESS", "second time", ("Reject", "return")), {"then": "requeue"}),
    "replace": End(Outcome("SUCCESS", "done", ("return",)), {"value": "done"}, task="replaced"),
    "soft limit": End(UNTOUCHED, LIMITED, task="watched_soft", otherwise={"prefork": SOFT}),
    "hard limit": End(
        UNTOUCHED,
        LIMITED,
        task="watched_hard",
        otherwise={
            "prefork": Outcome("FAILURE", "TimeLimitExceeded", ("SystemExit",)),
            "gevent": Outcome("FAILURE", "TimeLimitExceeded", ("Timeout",)),
        },
    ),
    "hard limit, swallowed": End(
        UNTOUCHED,
        {"stubborn": "gate", "value": "done"},
        task="watched_hard",
        otherwise={"prefork": Outcome("FAILURE", "TimeLimitExceeded", (), dies=True)},
    ),
    "SIGTERM": terminated(TERMINATED, "SIGTERM"),
    "SIGQUIT": terminated(TERMINATED, "SIGQUIT"),
    "SIGUSR1": terminated(replace(SOFT, races=True), "SIGUSR1"),
    "SIGINT": terminated(Outcome("REVOKED", "TaskRevokedError", ("return",), goes_on=True), "SIGINT"),
    "SIGKILL": terminated(Outcome("REVOKED", "TaskRevokedError", (), dies=True), "SIGKILL"),
    "unserialisable": End(Outcome("FAILURE", "EncodeError", ("return",)), {"then": "unserialisable"}),
    "backend fails": End(
        Outcome("PENDING", None, ("return",), is_left=True),
        {"backend": "fails"},
        otherwise={"prefork": Outcome("PENDING", None, ("return",))},
    ),
}


@pytest.fixture(scope="module", params=POOLS)
def bench(make_bench, request) -> Bench:
    """One worker for all ends of a pool; a message that is never acknowledged takes a place of its prefetch."""
    bench = make_bench(fence_ttl=TTL, worker_lost_wait=0.3)
    add_tasks(bench.app)
    bench.pool = request.param
    bench.worker(
        app="bench.every_end",
        pool=request.param,
        concurrency=1 if request.param == "solo" else 2,
        options=["--prefetch-multiplier", "4"],
    )
    return bench


@pytest.mark.parametrize("name", ENDS)
def test_the_key_is_held_until_the_run_ends_and_free_right_after(bench, name):
    end, key, gate = ENDS[name], bench.key(), bench.gate()
    outcome = end.outcome(bench.pool)
    plan = {part: gate.path.name if value == "gate" else value for part, value in end.plan.items()}
    result = bench.send(end.task, key, plan)
    if end.signal is not None:
        wait_until(lambda: bench.ledger.facts("look", key=key), what="the body looks")
        bench.app.control.revoke(result.id, terminate=True, signal=end.signal)
    if outcome.goes_on:
        goes_on_under_its_lease(bench, key, result, end)
        gate.open()

    ends_as(bench, key, result, outcome)


def goes_on_under_its_lease(bench: Bench, key: str, result: AsyncResult, end: End) -> None:
    """The blow, which this pool has no means for, has come; the body holds its key on."""
    if end.signal is None:
        began = wait_until(lambda: bench.ledger.starts(key))[0]["at"]
        wait_until(
            lambda: (
                bench.ledger.facts("look", key=key)[-1:]
                and bench.ledger.facts("look", key=key)[-1]["at"] > began + BEYOND_THE_LIMIT
            ),
            what="the limit is over",
        )
    elif bench.pool != "solo":  # whose only thread is busy: it hears of the blow afterwards
        wait_until(lambda: f"Terminating {result.id}" in bench.workers[-1].log, what="the blow has come")
    before = len(bench.ledger.facts("look", key=key))
    wait_until(lambda: len(bench.ledger.facts("look", key=key)) > before + 3, what="the body goes on")
    assert bench.holder(key) is not None


def ends_as(bench: Bench, key: str, result: AsyncResult, outcome: Outcome) -> None:
    states = {outcome.state, "REVOKED"} if outcome.races else {outcome.state}
    wait_until(lambda: result.state in states, what=f"{result.state} becomes {outcome.state}")
    wait_until(lambda: len(bodies(bench, key)) == len(outcome.bodies), what=f"{outcome.bodies} have ended")
    if outcome.dies:
        pid = bench.ledger.starts(key)[0]["pid"]
        wait_until(lambda: not is_running(pid), what="the process is dead")
    wait_until(
        lambda: bench.holder(key) is None, timeout=1.0 if outcome.dies else SOON, what="the key is free"
    )

    assert bodies(bench, key) == outcome.bodies
    assert value_of(result) in ({outcome.result, "TaskRevokedError"} if outcome.races else [outcome.result])
    looks = bench.ledger.facts("look", key=key)
    assert [look for look in looks if not look["ours"]] == [], "freed while the body could still run"
    assert sum(look["last"] for look in looks) == len(outcome.bodies)
    wait_until(lambda: is_left(bench, result.id) == outcome.is_left, what="the message's fate")
    assert len(bench.ledger.starts(key)) == len(outcome.bodies) + outcome.dies
    assert bench.misses(key) == 0
    assert bench.ledger.tokens(key) == sorted(set(bench.ledger.tokens(key)))


def bodies(bench: Bench, key: str) -> tuple[str, ...]:
    return tuple(fact["outcome"] for fact in bench.ledger.ends(key))


def value_of(result: AsyncResult) -> Any:
    return type(result.result).__name__ if isinstance(result.result, BaseException) else result.result


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_chord_part_that_fails_frees_its_key_and_fails_the_chord(bench):
    failing, other, body, errors = (bench.key() for _ in range(4))
    tasks = bench.app.tasks
    callback = tasks["join"].s(key=body).on_error(tasks["errback"].s(key=errors))
    result = chord([tasks["watched"].si(failing, {"then": "raise"}), tasks["watched"].si(other)])(callback)

    assert bench.outcome(result) == "FAILURE"
    wait_until(lambda: bench.ledger.facts("errback", key=errors), what="the error callback was told")
    assert bench.ledger.facts("join", key=body) == []
    for key in (failing, other):
        wait_until(lambda key=key: bench.holder(key) is None, timeout=SOON, what="the part's key is free")
        assert [look["ours"] for look in bench.ledger.facts("look", key=key)] == [True]


@pytest.mark.parametrize("bench", ["prefork"], indirect=True)
def test_a_killed_pool_process_leaves_nothing_and_its_message_runs_again(bench):
    key, gate = bench.key(), bench.gate()
    result = bench.send("watched_survivor", key, {"watch": gate.path.name, "value": "done"})
    wait_until(lambda: bench.ledger.facts("look", key=key), what="the body looks")
    (start,) = bench.ledger.starts(key)
    token = bench.holder(key).token
    os.kill(start["pid"], signal.SIGKILL)
    wait_until(lambda: not is_running(start["pid"]), what="the process is dead")
    wait_until(lambda: holds_no_longer(bench, key, token), timeout=1.0, what="its key is free")
    gate.open()

    assert result.get(timeout=20) == "done"
    assert [look for look in bench.ledger.facts("look", key=key) if not look["ours"]] == []
    first, second = bench.ledger.tokens(key)
    assert second > first


def holds_no_longer(bench: Bench, key: str, token: int) -> bool:
    holder = bench.holder(key)
    return holder is None or holder.token > token
