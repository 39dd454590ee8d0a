"""
From a decision to what Celery does: the one place where policies have effects.

Each function publishes what has to be published first and then returns the
exception by which Celery ends the message. The caller raises it.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry

from celery_fence.errors import Contended, StoreUnavailable
from celery_fence.locking import events, policies
from celery_fence.locking.policies import Fail, GiveUp, Miss, SendLater, SendToBack, SkipRun, decide
from celery_fence.task.dead_letters import dead_letter
from celery_fence.task.install import runtime
from celery_fence.task.notes import Count, wall_clock
from celery_fence.task.publish import Publisher, route_of, send_again
from celery_fence.task.skip import skip

if TYPE_CHECKING:
    from celery_fence.locking.store import Holder
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)

LOST_RETRIES = 5
"""How often a run that lost its lease is sent again before it fails with `LeaseLost`."""

HOUR = 3600.0

OUTCOMES = {SendLater: "retry", SendToBack: "requeue", GiveUp: "dead_letter", SkipRun: "skip", Fail: "raise"}
"""What events call each decision."""


class PutOff(Ignore, Exception):
    """Ends a copy of a running message: another copy was published for later, nothing is stored."""


class Superseded(Ignore, Exception):
    """Ends a run whose message a copy took over: the result is the copy's business, nothing is stored."""


def miss(run: Run, key: str, holder: Holder | None) -> Exception:
    """What becomes of *run*'s message, whose *key* is held."""
    run.key = key
    if (
        holder is not None
        and (run.is_copy_of(holder) or run.overtook(holder))
        and not run.task.request.is_eager
    ):
        return put_off(run, holder)
    count = run.notes.misses
    asked = _asked(run, key, holder, count)
    _tell_hook(run, asked)
    return _act(run, run.options.miss_policy, asked, count, _contended(key, holder, count))


def outage(run: Run, error: StoreUnavailable) -> Exception:
    """What becomes of *run*'s message while the store is out of reach."""
    policy = run.options.outage_policy
    if isinstance(policy, str):
        return error
    count = run.notes.outages
    return _act(run, policy, _asked(run, run.key, None, count), count, error)


def lost(run: Run, error: Exception) -> Exception:
    """What becomes of *run*'s message after its lease was lost and its body stopped with *error*."""
    if run.succeeded_by_copy:
        return Superseded(f"A copy of this message holds {run.key!r} now.")
    if run.options.lost_policy != "retry" or run.task.request.is_eager or run.task.request.called_directly:
        return error
    if run.notes.losses >= LOST_RETRIES:
        logger.error(
            "Task %s[%s] lost its lease %d times; it fails now", run.task.name, run.task_id, LOST_RETRIES
        )
        return error
    delay = min(2.0**run.notes.losses, _longest_delay(run) or HOUR)
    notes = run.notes.cleared().lost_again()
    return _retry(error, delay, send_again(run.task, notes, delay=delay))


def put_off(run: Run, holder: Holder) -> Exception:
    """
    Let a copy of a running message, or a retry that overtook its predecessor, wait.

    Never skipped, dead-lettered or written about: the holder works under the same
    task id. Published again before it is acknowledged: on Redis both copies share
    one delivery tag, so acknowledging this one takes away the broker's only record
    of the running one.
    """
    waits = Miss(
        run.key,
        holder,
        attempt=run.notes.put_offs,
        roll=random.random(),
        longest_delay=_longest_delay(run),
    )
    decision = decide(policies.Retry(), waits)
    delay = decision.delay if isinstance(decision, SendLater) else 1.0
    try:
        send_again(run.task, run.notes.put_off_again(), delay=delay)
    except Reject:
        raise
    except Exception:  # acknowledged early: the running original is all there is, and all there has to be
        logger.exception("A copy of the running message %s[%s] is dropped", run.task.name, run.task_id)
    runtime(run.task.app).emit(events.PutOff(run.task, run.key, holder, run.task_id, delay))
    return PutOff(f"{run.key!r} is held by this very message; put off for {delay:.1f} s.")


def _asked(run: Run, key: str, holder: Holder | None, count: Count) -> Miss:
    now = wall_clock()
    return Miss(
        key=key,
        holder=holder,
        attempt=count.attempt,
        waited=count.waited_in_stage(now),
        retries=run.retries,
        stage=count.stage,
        roll=random.random(),
        longest_delay=_longest_delay(run),
        since_last=count.since_last(now),
    )


def _act(run: Run, policy: policies.Policy, asked: Miss, count: Count, why: Exception) -> Exception:
    """Carry the policy's decision out; returns what to raise."""
    decision = decide(policy, asked)
    holder = asked.holder
    _tell(run, asked, count, decision)
    match decision:
        case SendLater() | SendToBack():
            return _send_again(run, decision, holder, why)
        case GiveUp():
            return dead_letter(run, decision, count, holder)
        case SkipRun():
            skipped = skip(run, decision, holder)
            runtime(run.task.app).emit(events.Skipped(run.task, run.key, holder, run.task_id, skipped.record))
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
    return _retry(why, decision.delay, send_again(run.task, notes, delay=decision.delay))


def _retry(why: Exception, delay: float, signature: Any) -> Exception:
    retry: Exception = Retry(exc=why, when=round(delay, 3), is_eager=False, sig=signature)
    return retry


def _longest_delay(run: Run) -> float | None:
    """
    Half of the broker's visibility timeout where it has one.

    A message that waits for its time in a worker longer than that timeout is
    delivered again and again (Celery's documentation, "Visibility timeout" of Redis).
    """
    if run.task.request.is_eager or Publisher.of(run.task.app).driver in ("amqp", "memory"):
        return None
    options = run.task.app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout", HOUR)) / 2


def _contended(key: str, holder: Holder | None, count: Count) -> Contended:
    who = "an unknown holder" if holder is None else describe(holder)
    waited = count.waited(wall_clock())
    so_far = f"; waited {waited:.0f} s so far" if waited >= 1 else ""
    return Contended(f"{key!r} is held by {who}{so_far}.", key=key, holder=holder, waited=waited)


def describe(holder: Holder) -> str:
    """A holder in words."""
    facts = holder.facts
    name = (
        f"{facts.task_name}[{facts.task_id}]" if facts.task_id else facts.task_name or f"owner {holder.owner}"
    )
    left = (
        "no TTL at all (NO-TTL: made by hand?)"
        if holder.ttl_left is None
        else f"{holder.ttl_left:.1f} s left"
    )
    return f"{name} on {facts.host or 'an unknown host'}, {left}"


def _tell(run: Run, asked: Miss, count: Count, decision: policies.Decision) -> None:
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
        runtime(run.task.app).emit(events.StillWaiting(run.task, run.key, holder, run.task_id, waited))
