"""
What a round will do, as a pure function of its seed and its faults.

The faults in a plan are those of the fault matrix: F1 kills, F2 freezes, F3 restarts of the lease
server, F4 lost data, F5 lost scripts, F6 partitions, F7 slowness, F9 full memory, F10 clocks, F11 copies of
messages, F13 bodies that harm their own process. A longer round begins with everything that a shorter
one of the same seed does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from rig.strikes import KINDS, Strike, strikes_of

FAULTS = ("F1", "F2", "F3", "F4", "F5", "F6", "F7", "F9", "F10", "F11", "F13")
LOSES_DATA = ("F3", "F4", "F9")
"""Faults after which the store may have forgotten tokens; see `without_contradiction`."""

POOLS = ("prefork", "prefork", "threads", "gevent", "solo")
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """
    One worker process.

    *skew* seconds are added to its wall clock. Celery and kombu compare wall clocks between workers, so one
    with a *skew* has a broker database of its own; it shares the leases with the others.
    """

    name: str
    pool: str
    concurrency: int
    skew: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A round: *seconds* of load with faults, then healing and drain. All times in seconds."""

    seed: int
    faults: tuple[str, ...]
    seconds: float
    ttl: float
    keys: tuple[str, ...]
    workers: tuple[WorkerPlan, ...]
    steps_server_clock: bool
    control: str | None = None
    counter_retention: float = 7 * DAY
    done_retention: float = 7200.0
    visibility: float = 3.0
    waits_for_retention: bool = False

    def strikes(self) -> Iterator[Strike]:
        """Every fault that strikes from outside, in the order in which they begin."""
        merged = sorted(
            itertools.chain.from_iterable(
                strikes_of(KINDS[fault], Random(f"{self.seed}:{fault}"), self.ttl, self.seconds)
                for fault in self.faults
                if fault in KINDS and (fault != "F10" or self.steps_server_clock)
            ),
            key=lambda strike: strike.at,
        )
        return iter(merged)


def replay_command(
    seed: int, faults: Sequence[str], seconds: float, *, control: str | None = None, retention: bool = False
) -> str:
    """The one command to type to play a round again."""
    words = f"make chaos SEED={seed} FAULTS={'+'.join(faults) or 'none'} SECONDS={seconds:g}"
    return words + (f" CONTROL={control}" if control else "") + (" RETENTION=1" if retention else "")


def make_plan(
    seed: int, faults: Sequence[str], seconds: float, *, control: str | None = None, retention: bool = False
) -> Plan:
    """
    The plan of *seed*. With *retention* the store remembers idle keys for a minute only, and the round waits for that.

    Raises `ValueError` for a fault that doesn't exist.
    """
    unknown = [fault for fault in faults if fault not in FAULTS]
    if unknown:
        raise ValueError(f"no such fault: {', '.join(unknown)}; known are {', '.join(FAULTS)}")
    dice = Random(f"{seed}:world")
    ttl = round(dice.uniform(0.6, 1.5), 2)
    # With a control few, so that there is somebody else soon.
    keys = tuple(f"key-{number}" for number in range(dice.randint(*((5, 8) if control else (16, 28)))))
    steps_server_clock = "F10" in faults and not set(faults) & set(LOSES_DATA)
    kept = {"counter_retention": 60.0, "done_retention": 60.0} if retention else {}
    return Plan(
        seed=seed,
        faults=tuple(faults),
        seconds=seconds,
        ttl=ttl,
        keys=keys,
        workers=_workers(dice, skewed="F10" in faults),
        steps_server_clock=steps_server_clock,
        control=control,
        waits_for_retention=retention,
        **kept,
    )


def random_faults(seed: int, faults: Sequence[str] = FAULTS) -> tuple[str, ...]:
    """
    One of *faults*, or a pair of them, for a round of a soak.

    Freezing (F2) is in most of them: it is what a lease library has to stand.
    """
    dice = Random(f"{seed}:faults")
    first = "F2" if dice.random() < 0.5 else dice.choice(faults)
    if dice.random() < 0.3:
        return (first,)
    second = dice.choice([fault for fault in faults if fault != first])
    return tuple(sorted((first, second), key=FAULTS.index))


def _workers(dice: Random, *, skewed: bool) -> tuple[WorkerPlan, ...]:
    """
    The first is always prefork: it has children to kill, and an event loop; without one kombu brings nothing back.
    """
    pool = dice.choice(POOLS)
    workers = [
        WorkerPlan("w1", "prefork", 5),
        WorkerPlan("w2", pool, 1 if pool == "solo" else 6),
    ]
    skew = dice.choice((3600.0, -3600.0))
    if skewed:
        workers.append(WorkerPlan("w3", "prefork", 3, skew))
    return tuple(workers)
