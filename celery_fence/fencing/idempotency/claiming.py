"""`claim`: whether this run is to do the work, and the row that says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from celery_fence.errors import AlreadyDone, ClaimMismatch, ConfigError
from celery_fence.fencing.gate.mark import Answer, kept_scope
from celery_fence.fencing.gate.place import Place, place_of
from celery_fence.fencing.idempotency.record import WHOLE, Record, Wish
from celery_fence.fencing.idempotency.result import Encoding
from celery_fence.fencing.idempotency.table import dialect_at
from celery_fence.fencing.writer import Shown, Writer, let_pass, refuse, writer_of
from celery_fence.locking import current

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done once: *key*, or one *step* of it, by *writer*."""

    key: str
    step: str
    writer: Writer

    @property
    def name(self) -> str:
        """As people read it."""
        return f"{self.key}/{self.step}" if self.step else self.key

    @property
    def wish(self) -> Wish:
        """As the database is asked for it."""
        writer = self.writer
        return Wish(
            kept_scope(self.key),
            kept_scope(self.step),
            kept_scope(writer.key),
            writer.token or 0,
            writer.owner or "",
        )


@dataclass(frozen=True, slots=True)
class Claimed:
    """
    The work is this run's to do, in the transaction in which it was claimed.

    *key* and *step* say what. *kept* is False where a guard in mode ``shadow`` or ``off``
    let the run go on although the record isn't its own; then nothing is recorded.
    """

    key: str
    step: str
    kept: bool
    _work: Work = field(repr=False)
    _connection: Any = field(repr=False)

    def complete(self, result: T = None) -> T:  # type: ignore[assignment]
        """
        Write into the record that the work is done, with *result*, and return that: one round trip.

        In the same transaction as `claim`, whose commit makes it count, or, where the claim
        was committed, in a later one.

        Raises:
            UnstorableResult: the result can't be encoded, or is too large. Nothing is recorded
                or lost: the transaction rolls back with the effect.
            StaleToken: a run with a newer token has taken the claim over.
            AlreadyDone: the record was completed before.

        """
        if not self.kept:
            return result
        encoded = Encoding.of(self._work.writer.source).encode(result, key=self._work.name)
        wish, place = self._work.wish, place_of(self._connection)
        parameters = {**wish.name, **wish.writer, "result": encoded}
        answer = place.ask(dialect_at(place).COMPLETE, parameters)
        if answer.rowcount != 1:
            self._check(place, answer, encoded)
        return result

    def _check(self, place: Place, answer: Answer, encoded: str) -> None:
        """No row was changed, or the driver doesn't tell; then what the row says decides."""
        found, wish = _found(place, self._work), self._work.wish
        if found is None:
            raise ConfigError(
                f"The record of {self._work.name!r} was claimed and isn't there any more: complete() belongs into the "
                "transaction of its claim(), or into a later one, not after its rollback."
            )
        mine = (found.token, found.owner, found.result) == (wish.token, wish.owner, encoded)
        if not (mine and answer.rowcount < 0):
            _refuse(self._work, found, what="complete()")


def claim(connection: Any, *, key: str | None = None, lease: Shown | None = None) -> Claimed:
    """
    Claim the work of the running task's idempotency key in the caller's transaction: one round trip.

    Its row stays locked until the transaction ends, and another transaction that claims the
    same key waits for that. Call `Claimed.complete` in the same transaction as the effect.
    *connection* is one that `celery_fence.fencing.gate.pass_gate` takes; for async ones there is
    `celery_fence.fencing.sqlalchemy.claim_async`. *key* is that of the task unless given; *lease* the
    one that the task runs under, or, for another key, the innermost one here.

    Raises:
        AlreadyDone: the work is done and committed; it carries the result. A fenced task
            that lets the one about its own key pass ends with that as its result.
        StaleToken: a run with a newer token has claimed it.
        ClaimMismatch: it is claimed under another lock key, so that tokens can't be compared.
        UnfencedWrite: there is no lease, or it has no token.
        ConfigError: no key, no transaction, or no connection that is known.

    """
    return claim_work(connection, _whole(key, lease))


def claim_work(connection: Any, work: Work) -> Claimed:
    """See `claim`."""
    writer = work.writer
    if writer.token is None:
        let_pass(writer, scope=work.name, what="claim()")
    if not writer.compares:
        return _unkept(work)
    place = place_of(connection)
    place.check_transaction()
    dialect = dialect_at(place)
    if dialect.has_claimed(place.ask(dialect.CLAIM, work.wish.parameters)):
        return Claimed(work.key, work.step, kept=True, _work=work, _connection=connection)
    found = _found(place, work)
    if found is None:
        raise LookupError(
            "A row of fence_records was upserted and can't be read: has the table a rule or a policy?"
        )
    if found.is_claim_of(work.wish):
        return Claimed(work.key, work.step, kept=True, _work=work, _connection=connection)
    _refuse(work, found, what="claim()")
    return _unkept(work)


def work_of_task(key: str | None, lease: Shown | None, *, step: str) -> Work:
    """The work named *key*, or else after the running task, by *lease*, or else by that task's."""
    frame = next((each for each in reversed(current.frames()) if each.task is not None), None)
    if frame is not None and key in (None, frame.record):
        key = frame.record or (_task_name(frame.task) if step else None)
        lease = lease or frame.lease
    if key is not None and not isinstance(key, str):
        raise ConfigError(f"key={key!r} must be a text such as 'payment:7'.")
    if not key:
        raise ConfigError(
            "There is no idempotency key here: give the task an idempotency_key='payment:<job_id>', or name the work "
            "with key=...."
        )
    return Work(key, step, writer_of(lease))


def _whole(key: str | None, lease: Shown | None) -> Work:
    return work_of_task(key, lease, step=WHOLE)


def _task_name(task: Any) -> str | None:
    """What the steps of a task without an idempotency key belong to: its message and retries, not what replaces it."""
    request = task.request
    if not request.id:
        return None
    nesting = request.replaced_task_nesting or 0
    return f"task {request.id}" + (f", replaced {nesting} times" if nesting else "")


def _unkept(work: Work) -> Claimed:
    return Claimed(work.key, work.step, kept=False, _work=work, _connection=None)


def _found(place: Place, work: Work) -> Record | None:
    rows = place.ask(dialect_at(place).FOUND, work.wish.name).rows
    return Record.of(rows[0]) if rows else None


def _refuse(work: Work, found: Record, *, what: str) -> None:
    """Raise what stands against this writer's doing the work; a writer that doesn't enforce is only told of."""
    writer = work.writer
    if found.done is not None:
        if writer.enforces:
            raise _done(work, found)
    elif found.lock_key != work.wish.lock_key:
        raise _mismatch(work, found)
    else:
        refuse(writer, scope=work.name, seen=found.token, seen_owner=found.owner, what=what)


def _done(work: Work, found: Record) -> AlreadyDone:
    said = f"The work of {work.name!r} was done before, with token {found.token}, and is not done again."
    if (found.token, found.owner) == (work.wish.token, work.wish.owner):
        said = (
            f"The work of {work.name!r} was completed by this very run, with token {found.token}. If that was in this "
            "transaction, it is rolled back with this error: claim and complete a piece of work once in a transaction."
        )
    facts: dict[str, Any] = {"scope": found.lock_key, "token": found.token, "record": work.name}
    try:
        result = Encoding.of(work.writer.source).decode(found.result or "")
    except ValueError as error:
        return AlreadyDone(f"{said} Its result isn't to be had: {error}.", **facts)
    return AlreadyDone(said, **facts, has_result=True, result=result)


def _mismatch(work: Work, found: Record) -> ClaimMismatch:
    return ClaimMismatch(
        f"The work of {work.name!r} was claimed under the lock key {found.lock_key!r} and not finished, and this run "
        f"has the lock key {work.writer.key!r}: their tokens can't be compared, so nothing was done. Give all work of "
        "one idempotency key the same lock_key; after a change of it, delete_record() removes the claim of a dead run.",
        record=work.name,
        key=work.writer.key,
        claimed_under=found.lock_key,
    )
