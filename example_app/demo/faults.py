"""
What goes wrong in the night: one pool process is frozen, another one killed.

Both are done from outside, with signals, as a paused virtual machine or the
kernel's OOM killer would; the tasks know nothing of it. Each story is a generator
that is resumed whenever the journal was read anew.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

from example_app.demo.processes import is_stopped, wait_until
from example_app.demo.screen import Screen
from example_app.demo.watch import Watch
from example_app.ledger import Run
from example_app.models import JournalEntry

Story = Iterator[None]
STOP_TIMEOUT = 1.0


def freeze_one(watch: Watch, screen: Screen, *, slow_seconds: float) -> Story:
    """Freeze a run between its read and its write; wake it when somebody else has charged its tenant."""
    while (victim := _catch(watch, longest=slow_seconds)) is None:
        yield
    frozen = _note(watch, "frozen", victim)
    screen.say(f"FROZEN: process {victim.pid} of {victim.who}, charging tenant {victim.tenant_id}", "warn")
    while not watch.written_since(frozen, victim.tenant_id):
        yield
    _note(watch, "woken", victim)
    screen.say(
        f"WOKEN:  process {victim.pid}; another run has charged tenant {victim.tenant_id} since", "warn"
    )
    os.kill(victim.pid, signal.SIGCONT)


def kill_one(watch: Watch, screen: Screen, *, slow_seconds: float) -> Story:
    """Once somebody is frozen, kill the process of another run in the middle of its charge."""
    while not watch.count("frozen"):
        yield
    while (victim := _catch(watch, longest=slow_seconds)) is None:
        yield
    os.kill(victim.pid, signal.SIGKILL)
    _note(watch, "killed", victim)
    screen.say(f"KILLED: process {victim.pid} of {victim.who}, charging tenant {victim.tenant_id}", "warn")
    while victim.task_id not in watch.finished():
        yield
    screen.say(f"the killed run's message was delivered again and has finished (tenant {victim.tenant_id})")


def _catch(watch: Watch, *, longest: float) -> JournalEntry | None:
    """Stop a run's process, and make sure that it stands between read and write; None if there was none."""
    for run in reversed(watch.charging()):
        if watch.seconds[run.tenant_id] < longest and watch.surely_waiting(run) and not is_stopped(run.pid):
            return run if _stop(watch, run) else None
    return None


def _stop(watch: Watch, run: JournalEntry) -> bool:
    """Whether SIGSTOP has reached *run* in time; otherwise it goes on as if nothing had been."""
    with suppress(ProcessLookupError):
        os.kill(run.pid, signal.SIGSTOP)
        if wait_until(lambda: is_stopped(run.pid), STOP_TIMEOUT) and watch.surely_waiting(run):
            watch.refresh()
            if run.id in {other.id for other in watch.charging()}:
                return True
        os.kill(run.pid, signal.SIGCONT)
    return False


def _note(watch: Watch, what: str, victim: JournalEntry) -> int:
    run = Run(task_id=victim.task_id, who="demo", pid=victim.pid, token=victim.token)
    return watch.ledger.note(what, victim.tenant_id, run)
