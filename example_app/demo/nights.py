"""One night: workers and two schedulers come up, things go wrong, latecomers come, and the books are read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from celery_fence.stores import from_url
from example_app.config import LEASE_TTL, Config
from example_app.demo.databases import scratch_database
from example_app.demo.faults import Story, freeze_one, kill_one
from example_app.demo.latecomers import write_raw
from example_app.demo.processes import POLL, Processes, Started, wait_until
from example_app.demo.screen import Screen
from example_app.demo.verdict import Books, read_books
from example_app.demo.watch import Watch
from example_app.ledger import Ledger
from example_app.models import JournalEntry
from example_app.schedule import SLOW_SECONDS

TENANTS = 120
REPLAY_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How big a night is; *timeout* in seconds is when unfinished messages count as lost."""

    fenced: bool = True
    tenants: int = TENANTS
    workers: int = 2
    concurrency: int = 3
    timeout: float = 45.0

    @property
    def nightly(self) -> int:
        """Each tenant's message, from both schedulers."""
        return 2 * self.tenants

    @property
    def messages(self) -> int:
        """All messages: one of the night's is sent once more."""
        return self.nightly + 1


@dataclass(frozen=True, slots=True)
class Morning:
    """What a night has left: the books, the journal, the leases, and the workers' last words."""

    books: Books
    journal: list[JournalEntry]
    leases_left: int
    seconds: float
    logs: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a night takes place: its servers, its directory for files, the person's own database, if any."""

    broker_url: str
    fence_url: str
    directory: Path
    database_url: str | None


def run_night(plan: Plan, place: Place, screen: Screen) -> Morning:
    """Run a whole night in a ledger of its own."""
    place.directory.mkdir()
    with scratch_database(place.database_url, place.directory) as url, _opened(url, plan) as ledger:
        config = Config(place.broker_url, place.fence_url, url)
        with Processes(place.directory, config.environment()) as processes:
            workers = _start(processes, plan, screen)
            began = time.monotonic()
            watch = Watch(ledger, expected=plan.nightly)
            _follow(watch, screen, timeout=plan.timeout)
            _let_latecomers_in(processes, plan, watch, url, screen)
            return Morning(
                books=read_books(ledger, ttl=LEASE_TTL),
                journal=watch.entries,
                leases_left=_leases_left(place.fence_url),
                seconds=time.monotonic() - began,
                logs="\n".join(f"--- {worker.name}\n{worker.tail()}" for worker in workers),
            )


@contextmanager
def _opened(database_url: str, plan: Plan) -> Iterator[Ledger]:
    ledger = Ledger(database_url, fenced=plan.fenced)
    try:
        ledger.open(plan.tenants, slow_seconds=SLOW_SECONDS)
        yield ledger
    finally:
        ledger.close()


def _start(processes: Processes, plan: Plan, screen: Screen) -> list[Started]:
    """Start everything at once, and let the schedulers go when everybody is there."""
    screen.say("starting workers and schedulers ...", "dim")
    workers = [_start_worker(processes, f"worker-{number + 1}", plan) for number in range(plan.workers)]
    schedulers = [
        _start_scheduler(processes, name, plan, "--wait") for name in ("scheduler-A", "scheduler-B")
    ]
    for worker in workers:
        worker.wait_for(" ready.")
    for scheduler in schedulers:
        scheduler.wait_for("ready")
    screen.say(f"{plan.workers} workers with {plan.concurrency} processes each are up; the schedulers send")
    for scheduler in schedulers:
        scheduler.tell("go")
    return workers


def _start_worker(processes: Processes, name: str, plan: Plan) -> Started:
    command = f"-m celery -A example_app worker -P prefork -c {plan.concurrency} -n {name}@demo -l info"
    return processes.start(name, [*command.split(), "--without-gossip", "--without-mingle"])


def _start_scheduler(processes: Processes, name: str, plan: Plan, *options: str) -> Started:
    command = f"-m example_app.schedule --name {name} --tenants {plan.tenants}"
    return processes.start(name, [*command.split(), *options, *([] if plan.fenced else ["--unfenced"])])


def _follow(watch: Watch, screen: Screen, *, timeout: float) -> None:
    """Show progress and let things go wrong, until every message has an outcome or the time is up."""
    deadline = time.monotonic() + timeout
    stories: list[Story] = [make(watch, screen, slow_seconds=SLOW_SECONDS) for make in (freeze_one, kill_one)]
    with screen.bar(watch.expected) as bar:
        while not watch.all_finished and time.monotonic() < deadline:
            watch.refresh()
            stories = [story for story in stories if next(story, story) is None]
            bar.show(len(watch.finished()), _note(watch))
            time.sleep(POLL)


def _note(watch: Watch) -> str:
    charges, misses = watch.count("charged"), watch.count("missed")
    return f"{charges} charges" + (f", a key was held {misses} times" if misses else "")


def _let_latecomers_in(
    processes: Processes, plan: Plan, watch: Watch, database_url: str, screen: Screen
) -> None:
    """In the morning: raw SQL writes to the frozen run's tenant, and its payment is sent once more."""
    victim = watch.frozen()
    if victim is not None:
        write_raw(database_url, watch, victim, screen)
    tenant = str(victim.tenant_id if victim else 1)
    screen.say(f"REPLAY: the payment of tenant {tenant} is sent once more", "warn")
    watch.expected = plan.messages
    _start_scheduler(processes, "replay-C", plan, "--tenant", tenant)
    wait_until(lambda: watch.refresh().all_finished, REPLAY_TIMEOUT)


def _leases_left(fence_url: str) -> int:
    """How many leases are still there once the last run had time to release: far less than their TTL."""
    store = from_url(fence_url)
    try:
        wait_until(lambda: not list(store.leases()), LEASE_TTL / 4)
        return len(list(store.leases()))
    finally:
        store.close()
