"""What is kept about one key, what is asked and what is answered: flat tuples, compared and hashed by value."""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """`celery_fence.locking.store.Claim` without what no rule looks at; times in ticks."""

    owner: str
    ttl: int
    lost_delay: int = 0
    delivery: str = ""
    message: str = ""
    if_held: str = ""


class Lease(NamedTuple):
    """A grant; *left* counts down to the moment at which the key opens, lost delay included."""

    owner: str
    token: int
    left: int
    since: float = 0
    lost_delay: int = 0
    delivery: str = ""
    message: str = ""

    @property
    def closed(self) -> bool:
        """Whether nobody works any more, and the key waits for its lost delay."""
        return 0 < self.lost_delay >= self.left


class Counter(NamedTuple):
    """The last token issued, who released last, and up to which token holders are fenced off."""

    token: int = 0
    released: str = ""
    forced: int = 0


class Holder(NamedTuple):
    """Who has a key, as far as anybody is told."""

    owner: str
    token: int
    closed: bool = False


class Answer(NamedTuple):
    """
    What the store says.

    *word* is one of granted, held, ended, delivery_ended (to an acquire), kept,
    reinstated, gone (to a renewal), released, gone (to a release), force_released, held
    (to a force release). *ended*: the delivery of a release has been ended by
    another, whose end stands.
    """

    word: str
    reason: str = ""
    token: int = 0
    since: float = 0
    holder: Holder | None = None
    how: str = ""
    value: bytes | None = None
    noted: bool = False
    ended: bool = False


class Marker(NamedTuple):
    """How a delivery ended, by whose word; *told* is who held the key, where that owner decided so on a miss."""

    how: str
    by: str
    noted: bool = False
    value: bytes | None = None
    told: Holder | None = None


class Key(NamedTuple):
    """All that a store keeps about one key; *markers* are sorted by delivery."""

    lease: Lease | None = None
    counter: Counter = Counter()
    markers: tuple[tuple[str, Marker], ...] = ()

    def marker(self, delivery: str) -> Marker | None:
        """How *delivery* ended; nothing is remembered of one without a name."""
        return next((marker for name, marker in self.markers if name == delivery), None) if delivery else None

    def remember(self, delivery: str, marker: Marker) -> Key:
        """The key with this end of *delivery* in the place of an earlier one."""
        if not delivery:
            return self
        return self._replace(markers=tuple(sorted({**dict(self.markers), delivery: marker}.items())))

    def forget(self, delivery: str) -> Key:
        """The key with nothing known of *delivery*."""
        return self._replace(markers=tuple(pair for pair in self.markers if pair[0] != delivery))


Outcome = tuple[Key, Answer]
"""What is kept after a question, and what was answered."""
