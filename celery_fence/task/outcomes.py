"""
From a decision to what Celery does: the one place where policies have effects.

Each function publishes what has to be published first and then returns the
exception by which Celery ends the message. The caller raises it.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from celery_fence.errors import Contended, StoreUnavailable
from celery_fence.locking import events, policies
from celery_fence.locking.policies import Fail, GiveUp, Miss, SendLater, SendToBack, SkipRun, decide
from celery_fence.locking.store import Holder
from celery_fence.task.copies import (
    HOUR,
    ended_unheard_of,
    longest_delay,
    may_be_known_elsewhere,
    put_off,
    waits_for,
)
from celery_fence.task.dead_letters import dead_letter
from celery_fence.task.endings import ending_of_decision
from celery_fence.task.install import runtime
from celery_fence.task.notes import Count, wall_clock
from celery_fence.task.publish import route_of
from celery_fence.task.retries import retry
from celery_fence.task.skip import skip

if TYPE_CHECKING:
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)

OUTCOMES = {SendLater: "retry", SendToBack: "requeue", GiveUp: "dead_letter", SkipRun: "skip", Fail: "raise"}
"""What events call each decision."""


def foresee(run: Run) -> str:
    """
    The name of the terminal decision that a miss would lead to now; empty if the message would come back.

    Asked before the lease is, so that the store can remember the decision in the same
    round trip. Who holds the key makes no difference to it, except for what a body was
    replaced by: that may have overtaken it, and waits then.
    """
    if not run.identity or run.delivery.nesting:
        return ""
    somebody = Holder(run.key, owner="", token=0, ttl_left=None)
    ending = ending_of_decision(
        decide(run.options.miss_policy, _asked(run, run.key, somebody, run.notes.misses))
    )
    return "" if ending and ended_unheard_of(run) else ending


def miss(run: Run, key: str, holder: Holder | None) -> Exception:
    """What becomes of *run*'s message, because *key* is held: its own, or that of a block in its body."""
    run.subject = key
    if not run.task.request.is_eager and holder is not None and waits_for(run, holder):
        return put_off(run, holder)
    return decided(run, key, holder)


def decided(run: Run, key: str, holder: Holder | None) -> Exception:
    """What the miss policy makes of it."""
    count = run.notes.misses
    asked = _asked(run, key, holder, count)
    _tell_hook(run, asked)
    return _act(run, run.options.miss_policy, asked, count, _contended(key, holder, count))


def outage(run: Run, error: StoreUnavailable) -> Exception:
    """
    What becomes of *run*'s message while the store is out of reach.

    Only the store could tell whether a copy's message runs or has ended elsewhere. So
    nothing is written about one: it waits for the store, whatever the policy.
    """
    if not run.task.request.is_eager and may_be_known_elsewhere(run):
        logger.info(
            "%s[%s] may run or have ended elsewhere: it waits for the store", run.task.name, run.task_id
        )
        return put_off(run, None)
    policy = run.options.outage_policy
    if isinstance(policy, str):
        return error
    count = run.notes.outages
    return _act(run, policy, _asked(run, run.key, None, count), count, error)


def _asked(run: Run, key: str, holder: Holder | None, count: Count) -> Miss:
    now = run.now
    return Miss(
        key=key,
        holder=holder,
        attempt=count.attempt,
        waited=count.waited_in_stage(now),
        retries=run.delivery.retries,
        stage=count.stage,
        roll=random.random(),
        longest_delay=longest_delay(run),
        since_last=count.since_last(now),
    )


def _act(run: Run, policy: policies.Policy, asked: Miss, count: Count, why: Exception) -> Exception:
    """Carry the policy's decision out; returns what to raise."""
    decision = decide(policy, asked)
    holder = asked.holder
    _tell(run, asked, count, decision, why if holder is None else None)
    outcome = _carry_out(run, decision, count, holder, why)
    # Only now: a dead letter that couldn't be published goes back to the broker, and has not ended.
    run.ended = ending_of_decision(decision)
    run.remembered = bool(run.if_held) and holder is not None
    return outcome


def _carry_out(
    run: Run, decision: policies.Decision, count: Count, holder: Holder | None, why: Exception
) -> Exception:
    match decision:
        case SendLater() | SendToBack():
            return _send_again(run, decision, holder, why)
        case GiveUp():
            return dead_letter(run, decision, count, holder)
        case SkipRun():
            skipped = skip(run, decision, holder)
            runtime(run.task.app).emit(
                events.Skipped(
                    run.task,
                    run.subject,
                    holder,
                    run.task_id,
                    skipped.record,
                    "held" if holder is not None else "store_unavailable",
                )
            )
            return skipped
        case Fail():
            return why


def _send_again(
    run: Run, decision: SendLater | SendToBack, holder: Holder | None, why: Exception
) -> Exception:
    if run.task.request.is_eager:
        return why  # nothing comes back later in eager mode: it ends at once instead of recursing
    now, route = wall_clock(), route_of(run.task.app, run.task.request)
    noted = run.notes.missed if holder is not None else run.notes.outage
    notes = noted(decision.stage, decision.attempt, now, route)
    _warn_hourly(run, holder, notes.misses if holder is not None else notes.outages)
    return retry(run, why, decision.delay, notes)


def _contended(key: str, holder: Holder | None, count: Count) -> Contended:
    who = "an unknown holder" if holder is None else describe(holder)
    waited = count.waited(wall_clock())
    so_far = f"; waited {waited:.0f} s so far" if waited >= 1 else ""
    return Contended(f"{key!r} is held by {who}{so_far}.", key=key, holder=holder, waited=waited)


def describe(holder: Holder) -> str:
    """A holder in words."""
    if holder.closed:
        return f"nobody: the last holder was lost, and the key stays closed for {holder.ttl_left or 0.0:.1f} s more"
    facts = holder.facts
    name = facts.task_name or (f"process {facts.pid}" if facts.pid else f"owner {holder.owner}")
    who = f"{name}[{facts.task_id}]" if facts.task_id else name
    left = "NO-TTL (made by hand?)" if holder.ttl_left is None else f"{holder.ttl_left:.1f} s left"
    return f"{who} on {facts.host or 'an unknown host'}, {left}"


def _tell(run: Run, asked: Miss, count: Count, decision: policies.Decision, error: Exception | None) -> None:
    outcome, delay = OUTCOMES[type(decision)], getattr(decision, "delay", None)
    if run.task.request.is_eager and delay is not None:
        outcome, delay = "raise", None  # nothing comes back later in eager mode
    runtime(run.task.app).emit(
        events.Missed(
            run.task,
            asked.key,
            asked.holder,
            run.task_id,
            outcome,
            delay,
            count.total + 1,
            count.waited(wall_clock()),
            error,
        )
    )


def _tell_hook(run: Run, asked: Miss) -> None:
    try:
        run.task.on_miss(asked, run.args, run.kwargs)
    except Exception:  # a user's hook must not lose the message
        logger.exception("on_miss of task %s failed; its policy is carried out all the same", run.task.name)


def _warn_hourly(run: Run, holder: Holder | None, count: Count) -> None:
    """Say once in each hour that a message still waits, from times that travel with it."""
    waited = count.last - count.first
    noted = run.notes.misses if holder is not None else run.notes.outages
    before = noted.waited(noted.last)
    if int(waited // HOUR) > int(before // HOUR):
        runtime(run.task.app).emit(events.StillWaiting(run.task, run.subject, holder, run.task_id, waited))
