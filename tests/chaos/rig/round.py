"""One round: load under faults, healing, drain, and what the checkers say to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from celery_fence.locking.trust import margin
from rig.bodies import HEALED
from rig.conductor import Conductor
from rig.history import now
from rig.outcomes import Outcomes
from rig.plan import Plan, replay_command
from rig.probe import ask_for_every_key
from rig.report import Report, report_on
from rig.sender import Sender
from rig.store_keys import count_keys, leases_of
from rig.tasks import LOST_DELAY, policies_of_tasks
from rig.waiting import waited_for
from rig.world import World

START = 90.0
DRAIN = 90.0
"""Seconds for the workers to be ready, and for everything that was sent to end: more than a loaded machine takes."""

UNDER_WAY = 5.0
"""Seconds of empty queues after which no message is on its way between two of them."""

TURN = 0.02
LOOK = 0.2
LOOK_AT_LEASES = 1.0
"""Seconds between two turns of the driver, between two looks at the results, and at the leases after the heal."""


def play(plan: Plan, directory: Path, *, stop: Callable[[], bool] = lambda: False) -> Report:
    """
    Play *plan* in *directory* and report on it.

    *stop* is asked between turns; once true, the load ends early and the round goes on with its drain.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with World(plan, directory) as world:
            Round(world, stop).play()
    except Exception as error:
        error.add_note(
            f"histories: {directory}\nreplay: {replay_command(plan.seed, plan.faults, plan.seconds)}"
        )
        raise
    return report_on(directory).write()


class Round:
    """A round in a world that is there."""

    def __init__(self, world: World, stop: Callable[[], bool]) -> None:
        self.world = world
        self.stop = stop
        self.outcomes = Outcomes(world)
        self.sender = Sender(world)
        self._looked = 0.0
        self._empty_since = 0.0
        self._looked_at_leases = 0.0

    def play(self) -> None:
        """From the first record to the last one but the checkers' word."""
        self._note_run()
        self._start()
        self._load()
        self._heal()
        self._drain()
        self._end()

    def _note_run(self) -> None:
        plan = self.world.plan
        self.world.history.note(
            "run",
            seed=plan.seed,
            control=plan.control,
            ttl=plan.ttl,
            margin=margin(plan.ttl),
            pool=[worker.pool for worker in plan.workers],
            faults=plan.faults,
            seconds=plan.seconds,
            policies=policies_of_tasks(),
            retention=max(plan.counter_retention, plan.done_retention),
            waits_for_retention=plan.waits_for_retention,
            lost_delay=LOST_DELAY,
            visibility=plan.visibility,
            ledger=self.world.ledger_url,
        )

    def _start(self) -> None:
        world = self.world
        for post in world.posts:
            if post.plan.skew:
                facts = {"id": f"clock of {post.plan.name}", "fault": "F10", "loses_data": False}
                for phase in ("begin", "end"):
                    world.history.note(
                        "fault",
                        phase=phase,
                        target=f"worker:{post.plan.name}",
                        detail=f"{post.plan.skew:+.0f} s",
                        **facts,
                    )
        world.history.note("keys", moment="before", **count_keys(world.client))
        world.launch()
        self._await_workers()
        world.holders.look()

    def _await_workers(self) -> None:
        if not waited_for(self._all_ready, START):
            logs = "\n".join(f"{post.plan.name}:\n{post.worker.tail(20)}" for post in self.world.posts)
            raise TimeoutError(f"not every worker was ready within {START:g} s\n{logs}")

    def _all_ready(self) -> bool:
        self.world.revive()
        return self.world.all_ready

    def _load(self) -> None:
        conductor = Conductor(self.world)
        until = now() + self.world.plan.seconds
        while now() < until and not self.stop():
            conductor.turn()
            self.world.revive()
            self.world.holders.look()
            self._look()
            self.outcomes.expect(self.sender.turn(len(self.outcomes.waiting)))
            time.sleep(TURN)
        if not waited_for(conductor.heal_all, START):
            raise TimeoutError("a fault can't be healed")

    def _look(self) -> None:
        if now() - self._looked > LOOK:
            self.outcomes.look()
            self._looked = now()

    def _heal(self) -> None:
        (self.world.directory / HEALED).touch()
        if "F13" in self.world.plan.faults:
            time.sleep(2.0 * self.world.plan.ttl)  # a body that holds the interpreter's lock still does
        self._await_workers()
        self.world.history.note("healed")

    def _drain(self) -> None:
        self.sender.close()
        ok = waited_for(self._drained, DRAIN, every=LOOK)
        self.world.history.note(
            "drained",
            ok=ok,
            waiting=list(self.outcomes.waiting),
            states=list(self.outcomes.waiting.values())[:50],
        )
        if ok:
            ask_for_every_key(self.world)

    def _drained(self) -> bool:
        self.world.revive()
        self.outcomes.look()
        self._look_at_leases()
        empty = self.outcomes.queues_are_empty
        self._empty_since = (self._empty_since or now()) if empty else 0.0
        if self._empty_since and now() - self._empty_since > UNDER_WAY:
            self.outcomes.give_up_what_the_broker_lost()
        return empty and not self.outcomes.waiting

    def _look_at_leases(self) -> None:
        if now() - self._looked_at_leases > LOOK_AT_LEASES:
            self._looked_at_leases = now()
            leases = leases_of(self.world.client)
            self.world.history.note("leases", at=self._looked_at_leases, until=now(), leases=leases)

    def _end(self) -> None:
        world, drained = self.world, now()
        world.stop_workers()
        self.outcomes.note()
        time.sleep(max(drained + world.plan.ttl + LOST_DELAY + 1.2 - now(), 0.0))
        world.history.note("keys", moment="after", **count_keys(world.client))
        if world.plan.waits_for_retention and not self.stop():
            time.sleep(world.plan.counter_retention + 1.0)
            world.history.note("keys", moment="later", **count_keys(world.client))
