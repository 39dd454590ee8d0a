"""Rules with one line taken out: for each, the checker has to tell how a promise breaks."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.model.clients import Client
from tests.chaos.model.facts import Answer, Claim, Counter, Key, Lease, Outcome
from tests.chaos.model.promises import (
    DENIED,
    DEPOSED,
    ENDED_TWICE,
    EXCLUSION,
    GIVEN_AWAY,
    GROWTH,
    LOCKED_OUT,
    LOST_WORK,
    MISLED,
    MISTAKEN,
    RETURNED,
    RUN_AGAIN,
    STALE,
    TOO_LONG,
    UNDONE,
)
from tests.chaos.model.scope import Role, Scope
from tests.chaos.model.scopes import COPY, LOSSES, OLDER, SKIPPED, THREE, TWO
from tests.chaos.model.server import Server
from tests.chaos.model.world import Owner


class IncrTokens(Server):
    """A token is the last one and one: a bare INCR."""

    def next_token(self, counter: Counter, now: int) -> int:
        return counter.token + 1


class CarelessRelease(Server):
    """Whoever releases, frees the key."""

    def may_release(self, lease: Lease, owner: str) -> bool:
        return True


class ForgetfulAcquire(Server):
    """An owner that asks again isn't recognised."""

    def is_granted(self, key: Key, claim: Claim) -> bool:
        return False


class FreshAcquire(Server):
    """An owner that asks again gets another token."""

    def acquire(self, key: Key, claim: Claim, now: int, since: float = 0) -> Outcome:
        again = self.is_granted(key, claim)
        return super().acquire(key._replace(lease=None) if again else key, claim, now, since)


class CarelessRenewal(Server):
    """A renewal doesn't ask whose lease it is."""

    def is_kept(self, lease: Lease, owner: str, token: int) -> bool:
        return not lease.closed


class TokenBlindRenewal(Server):
    """A renewal puts a lease back although a newer token was issued since."""

    def why_not_reinstated(self, key: Key, owner: str, token: int) -> str:
        reason = self.why_gone(key, owner, token)
        return "" if reason == "superseded" else reason


class AddingRenewal(Server):
    """A renewal adds the TTL to the time that is left."""

    def renew(self, key: Key, claim: Claim, token: int, since: float = 0) -> Outcome:
        longer = claim._replace(ttl=claim.ttl + (key.lease.left if key.lease else 0))
        return super().renew(key, longer, token, since)


class UsurpingRenewal(Server):
    """A renewal puts a lease back although somebody else holds the key."""

    def why_not_reinstated(self, key: Key, owner: str, token: int) -> str:
        reason = self.why_gone(key, owner, token)
        return "" if reason == "taken" else reason


class CredulousRenewal(Server):
    """A renewal believes that whoever is found in the store came later."""

    def is_of_the_past(self, lease: Lease | None, owner: str, token: int) -> bool:
        return False


class UndeadRenewal(Server):
    """A renewal puts a lease back although its owner has released it."""

    def why_not_reinstated(self, key: Key, owner: str, token: int) -> str:
        reason = self.why_gone(key, owner, token)
        return "" if reason == "released" else reason


class MildForceRelease(Server):
    """A force release deletes the lease, and fences nobody off."""

    def fenced_off(self, counter: Counter, fence: int) -> Counter:
        return counter


class ForgetfulRelease(Server):
    """Who has released isn't remembered."""

    def freed_by(self, counter: Counter, owner: str, token: int) -> Counter:
        return counter._replace(token=token)


class DeafGiveBack(Server):
    """Who gives back what it doesn't know to have isn't remembered."""

    def is_unheard(self, key: Key, token: int) -> bool:
        return False


class FreeGiveBack(Server):
    """Who gives back what it doesn't know to have takes up no token."""

    def release(  # noqa: PLR0917 - what is asked
        self, key: Key, claim: Claim, token: int, now: int, how: str = "", value: bytes | None = None
    ) -> Outcome:
        after, answer = super().release(key, claim, token, now, how, value)
        unheard = self.is_unheard(key, token) and after != key
        counter = after.counter._replace(token=key.counter.token)
        return after._replace(counter=counter) if unheard else after, answer


class ForgetfulEnd(Server):
    """How a delivery ended isn't remembered."""

    def is_news(self, key: Key, claim: Claim, *, rightful: bool) -> bool:
        return False


class BlindAcquire(Server):
    """Nobody looks whether the delivery has ended."""

    def seen_before(self, key: Key, claim: Claim) -> Answer | None:
        return Answer("ended") if key.counter.released == claim.owner else None


class HastyDecision(Server):
    """A miss is decided for good although the holder works on the same message, and may die."""

    def is_akin(self, lease: Lease, claim: Claim) -> bool:
        return False


class TrustFromTheReply(Client):
    """Trust counts from the answer."""

    def trust_of_grant(self, owner: Owner, full: int) -> int:
        return full


class NoMargin(Client):
    """Trust lasts for the whole TTL (the margin is one tick here)."""

    def trust_of_grant(self, owner: Owner, full: int) -> int:
        return owner.trust + 1 if owner.trust else 0


class SilentRenewal(Client):
    """A renewal that was sent is taken for one that was answered."""

    def trust_unanswered(self, owner: Owner, full: int) -> int:
        return full


class GullibleRelease(Client):
    """Whatever isn't released at the last asking, was lost."""

    def is_told_of_loss(self, answer: Answer, *, again: bool) -> bool:
        return answer.word == "gone"


class Unguarded(Client):
    """The place that is written to compares no tokens."""

    def accepts(self, token: int, mark: int) -> bool:
        return True


class LockingGuard(Client):
    """The place that is written to takes one write for each token."""

    def accepts(self, token: int, mark: int) -> bool:
        return token > mark


@dataclass(frozen=True, slots=True)
class Mutation:
    """Rules that lack something, the world in which that shows, and the promise that they break."""

    scope: Scope
    breaks: str

    @property
    def text(self) -> str:
        """What these rules do."""
        scope = self.scope
        return (scope.client if type(scope.server) is Server else scope.server).__doc__ or ""


COPIES = (COPY, COPY)
FORCE = frozenset({"force"})
JUMP = frozenset({"jump"})


def _server(
    server: Server,
    breaks: str,
    roles: tuple[Role, ...] = TWO,
    faults: frozenset[str] = frozenset(),
    ttl: int = 3,
) -> Mutation:
    return Mutation(Scope("", roles, faults, ttl=ttl, server=server), breaks)


def _client(
    client: Client,
    breaks: str,
    faults: frozenset[str] = frozenset(),
    roles: tuple[Role, ...] = TWO,
    *,
    writes: bool = False,
) -> Mutation:
    return Mutation(Scope("", roles, faults, writes=writes, client=client), breaks)


MUTATIONS = {
    "incr_tokens": _server(IncrTokens(), GROWTH, TWO, LOSSES),
    "careless_release": _server(CarelessRelease(), EXCLUSION, THREE),
    "forgetful_acquire": _server(ForgetfulAcquire(), MISLED),
    "fresh_acquire": _server(FreshAcquire(), DENIED),
    "careless_renewal": _server(CarelessRenewal(), EXCLUSION, ttl=4),
    "token_blind_renewal": _server(TokenBlindRenewal(), GIVEN_AWAY, ttl=4),
    "usurping_renewal": _server(UsurpingRenewal(), EXCLUSION, TWO, LOSSES),
    "credulous_renewal": _server(CredulousRenewal(), DEPOSED, TWO, OLDER),
    "undead_renewal": _server(UndeadRenewal(), RETURNED),
    "adding_renewal": _server(AddingRenewal(), TOO_LONG),
    "mild_force_release": _server(MildForceRelease(), UNDONE, TWO, FORCE),
    "forgetful_release": _server(ForgetfulRelease(), RETURNED),
    "deaf_give_back": _server(DeafGiveBack(), RETURNED, TWO, frozenset({"interrupt"})),
    "free_give_back": _server(FreeGiveBack(), RETURNED, TWO, frozenset({"interrupt"})),
    "forgetful_end": _server(ForgetfulEnd(), ENDED_TWICE, COPIES),
    "blind_acquire": _server(BlindAcquire(), RUN_AGAIN, COPIES),
    "blind_decision": _server(BlindAcquire(), RUN_AGAIN, (COPY, SKIPPED)),
    "hasty_decision": _server(HastyDecision(), LOST_WORK, COPIES),
    "trust_from_the_reply": _client(TrustFromTheReply(), EXCLUSION),
    "no_margin": _client(NoMargin(), GIVEN_AWAY, JUMP),
    "silent_renewal": _client(SilentRenewal(), EXCLUSION),
    "gullible_release": _client(GullibleRelease(), MISTAKEN, roles=(COPY, SKIPPED)),
    "unguarded": _client(Unguarded(), STALE, writes=True),
    "locking_guard": _client(LockingGuard(), LOCKED_OUT, writes=True),
}
