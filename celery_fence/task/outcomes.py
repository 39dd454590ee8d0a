"""
From a decision to what Celery does: the one place where policies have effects.

Each function publishes what has to be published first and then returns the
exception by which Celery ends the message. The caller raises it.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from celery.exceptions import Ignore, Reject

from celery_fence.errors import Contended, StoreUnavailable
from celery_fence.locking import events, policies
from celery_fence.locking.policies import Fail, GiveUp, Miss, SendLater, SendToBack, SkipRun, decide
from celery_fence.locking.store import DeliveryEnded, Gone, Holder
from celery_fence.task.dead_letters import dead_letter
from celery_fence.task.endings import Finished, ending_of_decision
from celery_fence.task.install import runtime
from celery_fence.task.notes import Count, wall_clock
from celery_fence.task.publish import route_of, send_again
from celery_fence.task.retries import has_outcome, retry
from celery_fence.task.settings import visibility_timeout
from celery_fence.task.skip import skip

if TYPE_CHECKING:
    from celery_fence.task.notes import Notes
    from celery_fence.task.run import Run

logger = logging.getLogger(__name__)

HOUR = 3600.0

DOUBT = 2.0
"""Seconds, at least, for which a copy waits for who may owe the store the end of its message."""

OUTCOMES = {SendLater: "retry", SendToBack: "requeue", GiveUp: "dead_letter", SkipRun: "skip", Fail: "raise"}
"""What events call each decision."""


class PutOff(Ignore, Exception):
    """Ends a copy of a running message: another copy was published for later, nothing is stored."""


class Superseded(Ignore, Exception):
    """Ends a run whose message a copy took over: the result is the copy's business, nothing is stored."""


def foresee(run: Run) -> str:
    """
    The name of the terminal decision that a miss would lead to now; empty if the message would come back.

    Asked before the lease is, so that the store can remember the decision in the same
    round trip. Who holds the key makes no difference to it, except for what a body was
    replaced by: that may have overtaken it, and waits then.
    """
    if not run.identity or run.nesting:
        return ""
    somebody = Holder(run.key, owner="", token=0, ttl_left=None)
    ending = ending_of_decision(
        decide(run.options.miss_policy, _asked(run, run.key, somebody, run.notes.misses))
    )
    return "" if ending and _ended_unheard_of(run) else ending


def miss(run: Run, key: str, holder: Holder | None) -> Exception:
    """What becomes of *run*'s message, because *key* is held: its own, or that of a block in its body."""
    run.subject = key
    if not run.task.request.is_eager and holder is not None and _waits_for(run, holder):
        return put_off(run, holder)
    return _decided(run, key, holder)


def _decided(run: Run, key: str, holder: Holder | None) -> Exception:
    """What the miss policy makes of it."""
    count = run.notes.misses
    asked = _asked(run, key, holder, count)
    _tell_hook(run, asked)
    return _act(run, run.options.miss_policy, asked, count, _contended(key, holder, count))


def _waits_for(run: Run, holder: Holder) -> bool:
    """Whether nothing is to be decided about *run*'s message: it runs as *holder*, is to follow it, or has ended."""
    return run.is_copy_of(holder) or run.overtook(holder) or _ended_unheard_of(run)


def _ended_unheard_of(run: Run) -> bool:
    """
    Whether the message is a copy of one that has an outcome, of which the lease store hasn't heard.

    A run lost its lease while the store was out of reach: how it ended can be noted only
    when the store is back, and a copy may ask before. One call to the backend, for copies only.
    """
    return _is_marked_as_copy(run) and has_outcome(run)


def is_doubtful(run: Run) -> bool:
    """
    Whether *run*, which has just been granted its key, may be a copy of a message that has ended.

    It has an outcome, of which the lease store knows nothing:

        the original   ends ... the store is away ... its lease expires        the store is told
        the copy                                          the store is back ... granted

    Whoever owes the store that end tells it within a second of its return. The copy waits for that once. If the
    store knows nothing of it then, the outcome is another delivery's, or nobody is left to tell: the body runs.
    A record (*record_key*) is left alone: a grant that is given back would take it from who is to write it.
    """
    return not run.notes.doubts and not run.record_key and _ended_unheard_of(run)


def doubt(run: Run) -> Exception:
    """What becomes of a doubtful copy, whose lease has been given back."""
    return _come_again(run, DOUBT * (1 + random.random()), notes=run.notes.doubted_again())


def outage(run: Run, error: StoreUnavailable) -> Exception:
    """
    What becomes of *run*'s message while the store is out of reach.

    Only the store could tell whether a copy's message runs or has ended elsewhere. So
    nothing is written about one: it waits for the store, whatever the policy.
    """
    if not run.task.request.is_eager and _may_be_known_elsewhere(run):
        logger.info(
            "%s[%s] may run or have ended elsewhere: it waits for the store", run.task.name, run.task_id
        )
        return put_off(run, None)
    policy = run.options.outage_policy
    if isinstance(policy, str):
        return error
    count = run.notes.outages
    return _act(run, policy, _asked(run, run.key, None, count), count, error)


def superseded(run: Run) -> Exception:
    """
    End a run whose message a copy holds now, or has ended: the result is the copy's business, nothing is stored.

    While the copy runs, the message is published for later once more: on Redis this
    acknowledgement takes away the broker's record of the copy too.
    """
    run.ended = ""  # what is noted is the copy's end
    answer = run.answer
    if isinstance(answer, Gone) and not answer.ended and answer.holder is not None:
        return put_off(run, answer.holder)
    return Superseded(f"A copy of this message has ended it while {run.key!r} was lost.")


def ended_before(run: Run, end: DeliveryEnded) -> Exception | None:
    """
    What becomes of a copy of a delivery that has ended; None where the body runs after all.

    See `celery_fence.task.endings` for the table.
    """
    if end.noted:
        return _finished(run, end)
    if end.age < run.options.ttl:
        return _come_again(run, run.options.ttl - end.age)
    match end.ending.how:
        case "returned":
            return None
        case "failed" if not _failure_is_complete(run):
            return None
        case "skipped" | "dead_lettered" | "raised":
            return _act_again(run, end)
        case _:
            run.ended = end.ending.how  # what followed was published before: only the note was missing
            return _finished(run, end)


def _failure_is_complete(run: Run) -> bool:
    """Whether nothing is left of a failure but its note: who had to write that may be frozen, and wake up later."""
    request = run.task.request
    return not (request.errbacks or request.chord) and has_outcome(run)


def _finished(run: Run, end: DeliveryEnded) -> Exception:
    """End a copy without a trace in the result, but not without a word."""
    runtime(run.task.app).emit(events.CopyEnded(run.task, run.key, run.task_id, end.ending.how, end.age))
    return Finished(f"This delivery has ended before ({end.ending.how}).")


def _act_again(run: Run, end: DeliveryEnded) -> Exception:
    """Carry out once more the decision of a process that died before it had, or before that was noted."""
    if end.ending.how != "skipped" and _failure_is_complete(run):
        run.ended = end.ending.how
        return _finished(run, end)
    run.subject = run.key
    return _decided(run, run.key, end.holder or Holder(run.key, owner="", token=0, ttl_left=None))


def _may_be_known_elsewhere(run: Run) -> bool:
    return _is_marked_as_copy(run) or has_outcome(run)


def _is_marked_as_copy(run: Run) -> bool:
    return run.redelivered or run.notes.put_offs > 0


def put_off(run: Run, holder: Holder | None) -> Exception:
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
        longest_delay=longest_delay(run),
    )
    decision = decide(policies.Retry(), waits)
    return _come_again(run, decision.delay if isinstance(decision, SendLater) else 1.0, holder)


def _come_again(
    run: Run, delay: float, holder: Holder | None = None, *, notes: Notes | None = None
) -> Exception:
    """Publish this copy for later and end it without a trace."""
    delay = min(max(delay, 1.0), longest_delay(run) or HOUR)
    try:
        # Without its expiry: Celery would write REVOKED under the id of the running message.
        send_again(run.task, notes or run.notes.put_off_again(), delay=delay, expires=None)
    except Reject:
        raise
    except Exception:  # acknowledged early: the running original is all there is, and all there has to be
        logger.exception("A copy of the running message %s[%s] is dropped", run.task.name, run.task_id)
    runtime(run.task.app).emit(events.PutOff(run.task, run.key, holder, run.task_id, delay))
    return PutOff(f"This very message holds {run.key!r} or has just ended; put off for {delay:.1f} s.")


def _asked(run: Run, key: str, holder: Holder | None, count: Count) -> Miss:
    now = run.now
    return Miss(
        key=key,
        holder=holder,
        attempt=count.attempt,
        waited=count.waited_in_stage(now),
        retries=run.retries,
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


def longest_delay(run: Run) -> float | None:
    """
    Half of the broker's visibility timeout where it has one.

    A message that waits for its time in a worker longer than that timeout is
    delivered again and again (Celery's documentation, "Visibility timeout" of Redis).
    """
    timeout = None if run.task.request.is_eager else visibility_timeout(run.task.app)
    return None if timeout is None else timeout / 2


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
