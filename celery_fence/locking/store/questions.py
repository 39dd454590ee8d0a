"""What a lease store is asked: who wants which key, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """Who is asking, for people and for telling twins apart; a store keeps it and never judges by it."""

    task_name: str = ""
    task_id: str = ""
    delivery: str = ""
    retries: int = 0
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """
    One owner's wish for one key, for *ttl* seconds.

    *delivery* is the delivery that asks, *message* what it is a delivery of (the
    same for its retries and copies); an empty *delivery* remembers nothing.
    *if_held* is what the asker will do for good if somebody else holds the key
    (``"skipped"``, ``"dead_lettered"``, ``"raised"``), empty if it comes back. An
    ended delivery is remembered for *retention* seconds. After the lease expired
    without a release, the key stays closed for *lost_delay* seconds. *record* is the
    idempotency key of work that is to be done once, empty for other work; what is known
    of it is kept for *record_retention* seconds.
    """

    key: str
    owner: str
    ttl: float
    facts: Facts = Facts()
    delivery: str = ""
    message: str = ""
    if_held: str = ""
    retention: float = 3600.0
    lost_delay: float = 0.0
    record: str = ""
    record_retention: float = 86400.0


@dataclass(frozen=True, slots=True)
class Renewal:
    """A holder's wish to keep what *claim* was granted: the same *token* for another full TTL."""

    claim: Claim
    token: int
    since: float


@dataclass(frozen=True, slots=True)
class Ending:
    """
    How a delivery ended, and what is needed to complete what follows from it.

    *how* is one of ``"returned"``, ``"failed"``, ``"retried"``, ``"replaced"``,
    ``"ignored"``, ``"rejected"`` (the body ended so), ``"skipped"``,
    ``"dead_lettered"``, ``"raised"`` (a terminal decision on a miss). *value* is
    the encoded return value, kept until the epilogue is noted. *result* is the same, for
    the idempotency record, which a body that returned completes; without it the record
    says only that the work was done.
    """

    how: str
    value: bytes | None = None
    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """The epilogue of a delivery (result, links, next chain step, chord part) is complete."""

    key: str
    delivery: str
    how: str
    retention: float
