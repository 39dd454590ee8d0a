"""What a process does with the answers it gets, and what the guarded place does with its writes: rules of ours, too."""

from __future__ import annotations

from tests.chaos.model.facts import Answer
from tests.chaos.model.world import Owner


class Client:
    """The rules as `celery_fence.locking` has them; *full* is the trust that a lease has when it is asked for."""

    def trust_of_grant(self, owner: Owner, full: int) -> int:
        """Counted from the first question: what is left of it when the answer is read."""
        return owner.trust

    def trust_of_renewal(self, owner: Owner, full: int) -> int:
        """Counted from the question of that renewal."""
        return owner.beat

    def trust_unanswered(self, owner: Owner, full: int) -> int:
        """A renewal that wasn't answered proves nothing."""
        return owner.trust

    def is_told_of_loss(self, answer: Answer, *, again: bool) -> bool:
        """Whether the answer to a release is that the lease was lost before; *again*: it had been asked for before."""
        return answer.word == "gone" and not (again and answer.reason in {"taken", "superseded"})

    def accepts(self, token: int, mark: int) -> bool:
        """Whether the guarded place takes a write: none below a token that it has seen."""
        return token >= mark
