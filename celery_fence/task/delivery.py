"""Which delivery of a message a worker has in hand: told by its headers, and by what its broker says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_fence.task.notes import Notes

if TYPE_CHECKING:
    from celery_fence.locking.store import Holder

DELAY_QUEUE = re.compile(r"(^|_)celery_delayed_\d+$")
"""The queues of Celery's native delayed delivery (kombu.transport.native_delayed_delivery)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    One delivery: the same for its copies, another for each retry, replacement and new send.

    *nesting* counts the replacements of the task before it. *redelivered*: the broker says that
    it was delivered before.
    """

    task_name: str
    task_id: str
    retries: int
    nesting: int
    notes: Notes
    redelivered: bool

    @classmethod
    def of(cls, task_name: str, request: Any) -> Delivery:
        """What *request* has in hand."""
        return cls(
            task_name=task_name,
            task_id=request.id or "",
            retries=request.retries or 0,
            nesting=request.replaced_task_nesting or 0,
            notes=notes_of(request),
            redelivered=bool((request.delivery_info or {}).get("redelivered")),
        )

    @property
    def full_id(self) -> str:
        """Its delivery id, and which replacement it is: what tells it from other deliveries of the same try."""
        return f"{self.nesting}.{self.notes.delivery}"

    @property
    def identity(self) -> str:
        """By which its end is remembered."""
        return f"{self.task_name}|{self.task_id}|{self.retries}|{self.full_id}"

    @property
    def message(self) -> str:
        """What it is a delivery of."""
        return f"{self.task_name}|{self.task_id}"

    def is_copy_of(self, holder: Holder) -> bool:
        """
        Whether *holder* runs this very delivery.

        A message that was published without a delivery id counts as a copy only if
        the broker flags it as redelivered.
        """
        facts = holder.facts
        mine = (self.task_name, self.task_id, self.retries, self.full_id)
        same = mine == (facts.task_name, facts.task_id, facts.retries, facts.delivery)
        return same and self._may_be_a_copy()

    def _may_be_a_copy(self) -> bool:
        """
        Without a delivery id only what the broker flags as redelivered counts as a copy, or was put off as one.

        Such a message waits for its running original. Its end isn't remembered: the
        flag doesn't say that THIS message has run.
        """
        return bool(self.notes.delivery or self.notes.put_offs) or self.redelivered

    def overtook(self, holder: Holder) -> bool:
        """Whether *holder* is what this retry or replacement follows: it published us from its body, and will end."""
        facts = holder.facts
        if not self.task_id or facts.task_id != self.task_id:
            return False
        nesting = facts.delivery.partition(".")[0]
        if nesting.isdecimal() and int(nesting) < self.nesting:
            return True
        return facts.task_name == self.task_name and facts.retries < self.retries


def notes_of(request: Any) -> Notes:
    """
    The notes of the message, with an id for its delivery where there is one.

    A message from a sender without celery-fence has none; on Redis its delivery tag,
    which stays the same when it is delivered again, stands in. What went through a
    dead-letter exchange of RabbitMQ and back is a new delivery each time.
    """
    headers = request.headers or {}
    notes = Notes.read(headers)
    tag = (request.properties or {}).get("delivery_tag")
    delivery = notes.delivery or (tag if isinstance(tag, str) else "")
    rounds = _rounds(headers.get("x-death"))
    return replace(notes, delivery=f"{delivery}+{rounds}" if delivery and rounds else delivery)


def _rounds(deaths: object) -> int:
    """
    How often RabbitMQ has dead-lettered the message, Celery's own delays not counted.

    A countdown on quorum queues lets the message expire from one delay queue into the
    next: that is still the same delivery.
    """
    if not isinstance(deaths, list):
        return 0
    real = (
        each for each in deaths if isinstance(each, dict) and not DELAY_QUEUE.search(str(each.get("queue")))
    )
    return sum(count for each in real if isinstance(count := each.get("count", 1), int))
