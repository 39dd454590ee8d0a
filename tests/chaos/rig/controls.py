"""
Negative controls: the product, or its guard, broken on purpose, so that the checkers have something to find.

A suite that finds nothing proves little as long as nobody has seen it find something. Each control breaks ONE thing
that other lock libraries have wrong, in the worker processes only, and a round is played with the faults that are known
to bring it out. The checkers look while the round goes on; what counts is how long they take to their first violation.

A control changes text or attributes of the product. Where these are no longer what it expects, it raises `Unbreakable`
and the worker doesn't start: a control that broke nothing would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha1
from typing import Any

from celery_fence.locking.beat import Beat
from celery_fence.locking.heartbeat import Heartbeat
from celery_fence.locking.locker import Locker
from celery_fence.stores.redis import scripts
from rig.ledger import Ledger

PARTS = {"_agenda", "_duty"}
"""What `mortal_heartbeat` expects of a heartbeat."""


class Unbreakable(LookupError):
    """What a control wants to break isn't there any more: change the control."""


@dataclass(frozen=True, slots=True)
class Control:
    """
    A way to break the product.

    *faults* bring it out, above all those of *seed*; the first violation is expected to be one of *shows*.
    """

    name: str
    breaks: Callable[[], None]
    faults: tuple[str, ...]
    shows: tuple[str, ...]
    seed: int


def unfenced() -> None:
    """Writes aren't guarded: whoever writes, writes."""
    if Ledger.__dict__.get("guarded") is not True:
        raise Unbreakable("Ledger.guarded")
    Ledger.guarded = False


def incr_tokens() -> None:
    """The token is a bare counter, as with INCR: it starts again at 1 where the counter is lost."""
    rewrite("acquire", "math.max(last.token + 1, now_us)", "last.token + 1")


def careless_release() -> None:
    """A release deletes the lease, whoever has it."""
    rewrite("release", "local mine = held and held.owner == owner", "local mine = held")


def forgetful_acquire() -> None:
    """An owner that asks again, because the reply was lost, isn't recognised: it finds its own lease in its way."""
    rewrite("acquire", "local mine = held and held.owner == owner and not held.closed", "local mine = false")


def mortal_heartbeat() -> None:
    """The heartbeat's thread ends at its first error; a new lease starts another, for itself only."""
    if not callable(getattr(Beat, "_try_again", None)) or not vars(Heartbeat()).keys() >= PARTS:
        raise Unbreakable(f"Beat._try_again, or one of a heartbeat's {PARTS}")

    def die(self: Any, *_: object) -> None:
        heartbeat = self._forget.__self__
        with heartbeat._agenda.lock:
            heartbeat._agenda.leases.clear()
            heartbeat._duty.end()

    Beat._try_again = die  # type: ignore[method-assign]


def endless_lease() -> None:
    """A release never reaches the store, and the heartbeat goes on for as long as its process lives."""
    if not all(callable(getattr(Locker, name, None)) for name in ("release", "_let_go")):
        raise Unbreakable("Locker.release, _let_go")

    def keep(*_: object, **__: object) -> None:
        """As if the store couldn't be reached, and nothing else were to be done."""

    Locker.release = keep  # type: ignore[method-assign]


CONTROLS = {
    control.name: control
    for control in (
        Control("unfenced", unfenced, ("F2",), ("I1", "I2", "I3"), seed=183),
        Control("incr_tokens", incr_tokens, ("F4",), ("I2",), seed=183),
        Control("careless_release", careless_release, ("F2",), ("G1",), seed=183),
        Control("mortal_heartbeat", mortal_heartbeat, ("F6",), ("I6",), seed=252),
        Control("forgetful_acquire", forgetful_acquire, ("F6",), ("I6",), seed=291),
        Control("endless_lease", endless_lease, (), ("I6",), seed=183),
    )
}


def apply(name: str) -> None:
    """
    Break what control *name* breaks, in this process and its forks.

    Raises `Unbreakable` where it isn't there, `KeyError` for a control that doesn't exist.
    """
    CONTROLS[name].breaks()


def rewrite(question: str, old: str, new: str) -> None:
    """Let every store that is made from now on ask *question* with *new* in the place of *old* in its script."""
    if not callable(getattr(scripts, "_load", None)):
        raise Unbreakable("scripts._load")
    load, script = scripts._load, scripts._load(question)
    if script.text.count(old.encode()) != 1:
        raise Unbreakable(f"{question}.lua: {old}")
    text = script.text.replace(old.encode(), new.encode())
    broken = replace(script, text=text, digest=sha1(text, usedforsecurity=False).hexdigest())

    def loaded(name: str) -> scripts.Script:
        return broken if name == question else load(name)

    scripts._load = loaded
    scripts.load_scripts.cache_clear()
