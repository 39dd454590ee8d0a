"""
The questions as pure functions: what is kept and what is asked give what is kept then and the answer.

These are the transitions that the scripts and the memory store are held to, and the
ones that the checker explores; nothing here knows of Lua, clocks or connections. *now*
is the server's clock as a token (us since the epoch, or anything that grows), *since*
the same moment for people, which no rule looks at.
"""

from __future__ import annotations

from tests.chaos.model.facts import Answer, Claim, Counter, Holder, Key, Lease, Marker, Outcome

KEPT, REINSTATED = Answer("kept"), Answer("reinstated")
OWNER_ENDED = Answer("ended")


class Server:
    """The rules as they are promised. What one line of them is worth is told by the subclasses in `mutations`."""

    def acquire(self, key: Key, claim: Claim, now: int, since: float = 0) -> Outcome:
        """Take the key if nobody has it, or say who does, or that this delivery or this owner has ended."""
        if self.is_granted(key, claim):
            return self._grant(key, claim, key.lease.token, key.lease.since)
        done = self.seen_before(key, claim)
        if done:
            return key, done
        if key.lease:
            return self._miss(key, claim)
        return self._grant(key, claim, self.next_token(key.counter, now), since)

    def renew(self, key: Key, claim: Claim, token: int, since: float = 0) -> Outcome:
        """Set the time left back to the TTL; put a lease back that vanished, if nobody was let in since."""
        lease = key.lease
        if lease and self.is_kept(lease, claim.owner, token):
            kept = lease._replace(token=token, left=claim.ttl + lease.lost_delay)
            return Key(kept, key.counter, key.markers), KEPT
        reason = self.why_not_reinstated(key, claim.owner, token)
        if reason:
            return key, Answer("gone", reason, holder=holder_of(lease) if reason == "taken" else None)
        counter = key.counter._replace(token=token)
        return Key(lease_of(claim, token, since), counter, key.markers), REINSTATED

    def release(  # noqa: PLR0917 - what is asked
        self, key: Key, claim: Claim, token: int, now: int, how: str = "", value: bytes | None = None
    ) -> Outcome:
        """Free the key if it is still the owner's, remember that it did, and how its delivery ended."""
        lease, done = key.lease, key.marker(claim.delivery)
        mine = lease is not None and self.may_release(lease, claim.owner)
        again = key.counter.released == claim.owner
        unheard = self.is_unheard(key, token)
        reason = "" if mine or again or unheard else self.why_gone(key, claim.owner, token)
        rightful = not again and not reason
        issued = self.next_token(key.counter, now) if unheard else token
        freed = self._free(key, claim.owner, issued) if rightful else key
        if how and self.is_news(key, claim, rightful=rightful):
            freed = freed.remember(claim.delivery, Marker(how, claim.owner, value=value))
            done = None
        ended = bool(done and done.by != claim.owner)
        if not reason:
            return freed, Answer("released", ended=ended)
        holder = holder_of(lease) if reason == "taken" else None
        return freed, Answer("gone", reason, holder=holder, ended=ended)

    def note(self, key: Key, delivery: str, how: str) -> Key:
        """The epilogue of *delivery* is complete: its value isn't needed any more."""
        marker = key.marker(delivery) or Marker(how, "")
        return key.remember(delivery, marker._replace(noted=True, value=None))

    def force_release(self, key: Key, now: int, owner: str | None = None) -> Outcome:
        """Free the key whoever has it, and fence that holder off; with *owner*, only if that one holds it."""
        lease = key.lease
        if lease and owner not in {None, lease.owner}:
            return key, Answer("held", holder=holder_of(lease))
        fence = max(key.counter.token + 1, (lease.token if lease else 0) + 1, now)
        counter = self.fenced_off(key.counter, fence)
        answer = Answer("force_released", holder=holder_of(lease) if lease else None)
        return key._replace(lease=None, counter=counter), answer

    # --- the single rules ------------------------------------------------------------

    def next_token(self, counter: Counter, now: int) -> int:
        """Greater than the last one, and than all before a loss of the counter."""
        return max(counter.token + 1, now)

    def is_granted(self, key: Key, claim: Claim) -> bool:
        """Whether the owner asks for what it has: a repeated question."""
        return key.lease is not None and key.lease.owner == claim.owner and not key.lease.closed

    def seen_before(self, key: Key, claim: Claim) -> Answer | None:
        """What an owner or a delivery is told that has ended before."""
        marker = key.marker(claim.delivery)
        if marker and marker.told and marker.by == claim.owner:
            return Answer("held", holder=marker.told)
        if marker:
            how, value, noted = marker.how, marker.value, marker.noted
            return Answer("delivery_ended", holder=marker.told, how=how, value=value, noted=noted)
        return OWNER_ENDED if key.counter.released == claim.owner else None

    def is_kept(self, lease: Lease, owner: str, token: int) -> bool:
        """Whether a renewal finds what it left behind."""
        return lease.owner == owner and lease.token <= token and not lease.closed

    def why_not_reinstated(self, key: Key, owner: str, token: int) -> str:
        """Why a lease that isn't as its renewal left it is gone; empty: it vanished, and may be put back."""
        return self.why_gone(key, owner, token)

    def may_release(self, lease: Lease, owner: str) -> bool:
        """Only an owner frees its own lease."""
        return lease.owner == owner

    def is_unheard(self, key: Key, token: int) -> bool:
        """Whether an owner without a token gives back what it may be granted yet, by a question under way."""
        return key.lease is None and not token

    def is_news(self, key: Key, claim: Claim, *, rightful: bool) -> bool:
        """The first end of a delivery stands; a copy that holds the key, or held it to its own end, knows better."""
        lease, done = key.lease, key.marker(claim.delivery)
        if lease and not (rightful or lease.owner == claim.owner) and lease.delivery == claim.delivery:
            return False
        return done is None or (rightful and done.by != claim.owner and not done.noted)

    def is_akin(self, lease: Lease, claim: Claim) -> bool:
        """Whether the holder works on the asker's own message: then there is nothing to decide about."""
        return bool(claim.message) and claim.message == lease.message

    def freed_by(self, counter: Counter, owner: str, token: int) -> Counter:
        """What the counter remembers of a release."""
        return counter._replace(token=token, released=owner)

    def fenced_off(self, counter: Counter, fence: int) -> Counter:
        """What the counter remembers of a force release."""
        return counter._replace(token=fence, forced=fence)

    def is_of_the_past(self, lease: Lease | None, owner: str, token: int) -> bool:
        """Whether another owner's lease is older than *token*: data of an earlier moment came back."""
        return lease is not None and lease.owner != owner and lease.token < token

    def why_gone(self, key: Key, owner: str, token: int) -> str:
        """Why an owner can't go on with *token*; empty: the key is its own, or nobody's since."""
        counter = key.counter
        lease = None if self.is_of_the_past(key.lease, owner, token) else key.lease
        if lease and lease.owner != owner:
            return "taken"
        if lease and lease.closed:
            return "expired"
        if counter.released == owner:
            return "released"
        if counter.forced >= token:
            return "force_released"
        newest = max(counter.token, lease.token if lease else 0)
        return "superseded" if newest > token else ""

    # --- how a rule is carried out ---------------------------------------------------

    def _grant(self, key: Key, claim: Claim, token: int, since: float) -> Outcome:
        counter = key.counter._replace(token=max(token, key.counter.token))
        return Key(lease_of(claim, token, since), counter, key.markers), Answer("granted", "", token, since)

    def _miss(self, key: Key, claim: Claim) -> Outcome:
        answer = Answer("held", holder=holder_of(key.lease))
        if claim.if_held and not self.is_akin(key.lease, claim):
            key = key.remember(claim.delivery, Marker(claim.if_held, claim.owner, told=answer.holder))
        return key, answer

    def _free(self, key: Key, owner: str, token: int) -> Key:
        newest = max(key.counter.token, token, key.lease.token if key.lease else 0)
        return key._replace(lease=None, counter=self.freed_by(key.counter, owner, newest))


def lease_of(claim: Claim, token: int, since: float) -> Lease:
    """A lease that has just been granted, renewed or put back."""
    left = claim.ttl + claim.lost_delay
    return Lease(claim.owner, token, left, since, claim.lost_delay, claim.delivery, claim.message)


def holder_of(lease: Lease) -> Holder:
    """Who has the key."""
    return Holder(lease.owner, lease.token, lease.closed)


def tick(key: Key) -> Key:
    """The key one tick later."""
    lease = key.lease
    if lease is None:
        return key
    later = lease._replace(left=lease.left - 1) if lease.left > 1 else None
    return Key(later, key.counter, key.markers)


def expire(key: Key) -> Key:
    """The key when its lease has run out: closed for its lost delay, and open after that."""
    lease = key.lease
    if lease and lease.lost_delay and not lease.closed:
        return key._replace(lease=lease._replace(left=lease.lost_delay))
    return key._replace(lease=None)


def lose_counter(key: Key) -> Key:
    """The key after its counter was evicted."""
    return key._replace(counter=Counter())
