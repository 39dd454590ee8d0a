"""
Everything that celery-fence raises.

Each message says what happened to which key and what to do about it; the facts
behind it are attributes. An error travels between processes by pickle (all
attributes kept) and through JSON result backends (message kept, attributes None).
"""

from __future__ import annotations

from typing import Any


class FenceError(Exception):
    """Base of every error of celery-fence; catch this to catch them all."""


class ConfigError(FenceError):
    """A setting, a task option or a key template can't be right; the message names it and the way out."""


class LockKeyError(FenceError, ValueError):
    """The key of one call can't be built from its arguments; no lease was taken and the body didn't run."""

    def __init__(
        self,
        message: str,
        *,
        template: str | None = None,
        field: str | None = None,
        task: str | None = None,
    ) -> None:
        super().__init__(message)
        self.template = template
        self.field = field
        self.task = task


class Contended(FenceError):
    """The key is held by somebody else, and the policy doesn't allow to wait any longer."""

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        holder: Any = None,
        waited: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder
        self.waited = waited


class DeadLettered(FenceError):
    """The message was given up after its misses and lies, replayable, in the dead-letter queue."""

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        reason: str | None = None,
        queue: str | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.reason = reason
        self.queue = queue


class LeaseLost(FenceError):
    """
    This execution can no longer trust its lease: another owner may have the key.

    An `Exception` on purpose: Celery's thread and greenlet pools never
    acknowledge a message whose task ended with a bare `BaseException`.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        token: int | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.token = token
        self.reason = reason


class StaleToken(FenceError):
    """A guarded write carried a fencing token older than one already seen; nothing was changed."""

    def __init__(
        self,
        message: str,
        *,
        scope: str | None = None,
        token: int | None = None,
        seen: int | None = None,
    ) -> None:
        super().__init__(message)
        self.scope = scope
        self.token = token
        self.seen = seen


class AlreadyDone(FenceError):
    """
    What may be done once was done before, and wasn't done again.

    A gate's step, in *scope* with *token*, or the work of an idempotency key, *record*. Of
    that one *has_result* says whether its *result* was kept. One that has it and leaves
    the body of a fenced task makes it the result of this message.
    """

    def __init__(
        self,
        message: str,
        *,
        scope: str | None = None,
        token: int | None = None,
        record: str | None = None,
        has_result: bool = False,
        result: Any = None,
    ) -> None:
        super().__init__(message)
        self.scope = scope
        self.token = token
        self.record = record
        self.has_result = has_result
        self.result = result


class ClaimMismatch(FenceError):
    """
    Two runs with one idempotency key have two lock keys, so neither's lease keeps the other out.

    *record* is the idempotency key, *key* the lock key of the run that was refused,
    *claimed_under* that of the other one.
    """

    def __init__(
        self,
        message: str,
        *,
        record: str | None = None,
        key: str | None = None,
        claimed_under: str | None = None,
    ) -> None:
        super().__init__(message)
        self.record = record
        self.key = key
        self.claimed_under = claimed_under


class ScopeMismatch(FenceError):
    """A guarded write was made with the lease on another key; tokens of two keys can't be compared."""

    def __init__(
        self,
        message: str,
        *,
        scope: str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.scope = scope
        self.key = key


class UnfencedWrite(FenceError):
    """A guarded write had no fencing token to show, or is of a kind that can't be guarded; it wasn't made."""


class MalformedStamp(FenceError, ValueError):
    """A message or request carries a fencing token that can't be one; whoever sent it has to be mended."""


class UnstorableResult(FenceError, ValueError):
    """A result can't be kept in the record of its work: it can't be encoded, or is too large; nothing was recorded."""

    def __init__(self, message: str, *, record: str | None = None) -> None:
        super().__init__(message)
        self.record = record


class StoreUnavailable(FenceError):
    """The lease store didn't answer, or answered with an error; whether a lease was taken is not known."""
