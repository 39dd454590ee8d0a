"""When everything has ended, the driver asks for every key itself, past all proxies, as a task would."""

from __future__ import annotations

import itertools
import time
from contextlib import closing

from celery_fence.errors import StoreUnavailable
from celery_fence.locking.store import Claim, Granted
from celery_fence.stores.redis.store import RedisStore
from rig.history import now
from rig.recorder import recorded
from rig.world import World

LONGEST = 30.0
"""Seconds after which a key that isn't granted never will be: a late copy's body may still take some of them."""

PACE = 0.2


def ask_for_every_key(world: World) -> None:
    """Ask for each key of the plan until it is granted, and give it back; note who has those that never were."""
    refused = dict.fromkeys(world.plan.keys, "")
    until = now() + LONGEST
    with closing(Applicant(world)) as applicant:
        while refused and now() < until:
            refused = {key: holder for key in refused if (holder := applicant.ask(key)) is not None}
            if refused:
                time.sleep(PACE)
    world.history.note("probed", refused=refused)


class Applicant:
    """Asks for keys as a new owner each time, and notes it as the workers do."""

    def __init__(self, world: World) -> None:
        self._store = RedisStore(world.leases.url, counter_retention=world.plan.counter_retention)
        self._ttl = world.plan.ttl
        self._acquire = recorded("acquire", RedisStore.acquire, world.history)
        self._release = recorded("release", RedisStore.release, world.history)
        self._numbers = itertools.count(1)

    def ask(self, key: str) -> str | None:
        """None if *key* was granted, and given back; else who has it."""
        claim = Claim(key, f"driver-{next(self._numbers)}", self._ttl)
        try:
            answer = self._acquire(self._store, claim)
            if isinstance(answer, Granted):
                self._release(self._store, claim, answer.token)
                return None
        except StoreUnavailable:
            return "nobody can tell"
        return str(answer.holder.owner)

    def close(self) -> None:
        """Close the connections."""
        self._store.close()
