"""Histories made by hand, for the checkers' own tests: moments are what the test says they are."""

from __future__ import annotations

import itertools
from typing import Any

from rig.checkers import judged
from rig.checkers.evidence import evidence_of
from rig.checkers.ledger import Ledger, Row
from rig.checkers.violation import Violation
from rig.history import Record

KEY = "tenant"
TTL = 1.0
TRUST = 0.9
"""Seconds for which a question that was answered with "yours" gives trust, at this TTL."""


class Story:
    """A run of two or three owners on one key; ask it for what the checkers find."""

    def __init__(self, **run: Any) -> None:
        self.records: list[Record] = []
        self.writes: list[Row] = []
        self.refusals: list[Row] = []
        self._calls = itertools.count()
        self.note("run", 0.0, role="driver", **{"ttl": TTL, "lost_delay": 0.0, "retention": 60.0, **run})

    def note(self, what: str, at: float, *, pid: int = 1, role: str = "worker:w1", **facts: Any) -> None:
        """Add one record."""
        self.records.append(Record(what, at, pid, role, facts))

    def ask(
        self,
        question: str,
        owner: str,
        at: float,
        answer: str | None,
        *,
        took: float = 0.01,
        key: str = KEY,
        pid: int = 1,
        given: dict[str, Any] | None = None,
        **item: Any,
    ) -> None:
        """One question and, if there is one, its answer *took* seconds later."""
        call = str(next(self._calls))
        items = [{"key": key, "owner": owner, "ttl": TTL, **item}]
        self.note("ask", at, pid=pid, call=call, question=question, items=items)
        if answer == "error":
            self.note("answer", at + took, pid=pid, call=call, error="StoreUnavailable")
        elif answer is not None:
            told = [{"answer": answer, **(given or {})}]
            self.note("answer", at + took, pid=pid, call=call, items=told)

    def grant(self, owner: str, token: int, at: float, **more: Any) -> None:
        """*owner* asks for the key and gets it."""
        self.ask("acquire", owner, at, "granted", given={"token": token}, **more)

    def miss(self, owner: str, holder: str, at: float, **more: Any) -> None:
        """*owner* asks for the key and is told that *holder* has it."""
        self.ask("acquire", owner, at, "held", given={"holder": holder}, **more)

    def renew(self, owner: str, at: float, answer: str | None = "kept", **more: Any) -> None:
        """The heartbeat of *owner* asks."""
        self.ask("renew", owner, at, answer, **more)

    def release(self, owner: str, at: float, answer: str | None = "released", **more: Any) -> None:
        """*owner* gives the key back."""
        self.ask("release", owner, at, answer, **more)

    def fault(
        self, name: str, began: float, ended: float | None, *, loses_data: bool = False, **facts: Any
    ) -> None:
        """A fault from *began* to *ended*, or without an end."""
        number = f"{name}-{next(self._calls)}"
        for phase, at in (("begin", began), ("end", ended)):
            if at is not None:
                self.note(
                    "fault",
                    at,
                    role="driver",
                    id=number,
                    fault=name,
                    phase=phase,
                    loses_data=loses_data,
                    **facts,
                )

    def start(
        self, owner: str, at: float, *, token: int = 1, task_id: str = "", key: str = KEY, **more: Any
    ) -> None:
        """The body of *owner* begins; its run is named after it."""
        self.note(
            "start",
            at,
            run=f"run-{owner}",
            task_id=task_id or owner,
            key=key,
            owner=owner,
            token=token,
            **more,
        )

    def end(self, owner: str, at: float, how: str = "returned") -> None:
        """The body of *owner* is over."""
        self.note("end", at, run=f"run-{owner}", how=how)

    def lost(self, owner: str, at: float, reason: str = "expired") -> None:
        """*owner* notices that the key isn't its own any more."""
        self.note("lost", at, key=KEY, owner=owner, token=1, reason=reason)

    def section(self, owner: str, before: float, *, passed: bool = True, at: float | None = None) -> None:
        """*owner* checks its lease."""
        moment = before if at is None else at
        self.note(
            "section", moment, run=f"run-{owner}", key=KEY, owner=owner, token=1, before=before, passed=passed
        )

    def write(self, owner: str, token: int, effect: str = "", *, run: str = "") -> None:
        """The ledger accepts a write."""
        self.writes.append(_row(len(self.writes) + 1, owner, token, effect=effect, run=run))

    def refuse(self, owner: str, token: int, seen: int) -> None:
        """The ledger refuses a write."""
        self.refusals.append(_row(len(self.refusals) + 1, owner, token, seen=seen))

    def published(self, task_id: str, at: float, *, name: str = "retry", key: str = KEY) -> None:
        """The driver sends a message, and a worker takes it."""
        self.note(
            "published", at, role="driver", task_id=task_id, name=name, key=key, policy="retry", copies=1
        )
        self.note("taken", at + 0.001, task_id=task_id, tag=f"{task_id}-1")

    def outcome(self, task_id: str, kind: str, **more: Any) -> None:
        """The driver finds what became of it, at the end."""
        self.note("outcome", 100.0, role="driver", task_id=task_id, state="SUCCESS", kind=kind, **more)

    def keys(self, moment: str, at: float, **counts: Any) -> None:
        """The driver looks at what the lease server has."""
        self.note("keys", at, role="driver", moment=moment, **{"without_expiry": [], **counts})

    def violations(self, *, online: bool = False) -> list[Violation]:
        """What the checkers find."""
        ledger = Ledger(self.writes, self.refusals)
        return judged(evidence_of(self.records, ledger, online=online))

    def broken(self, *, online: bool = False) -> set[str]:
        """Which invariants are broken."""
        return {violation.invariant for violation in self.violations(online=online)}


def _row(number: int, owner: str, token: int, *, effect: str = "", run: str = "", seen: int = 0) -> Row:
    return Row(number, KEY, token, owner, owner, run or f"run-{owner}", effect or f"{owner}:{number}", seen)
