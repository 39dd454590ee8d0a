"""The demo's processes: started with a log each, and ended by process id, frozen ones too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import example_app
from example_app.demo.stopping import uninterrupted

START_TIMEOUT = 40.0
STOP_TIMEOUT = 6.0
POLL = 0.02


class DemoError(Exception):
    """The demo can't go on; the message is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Started:
    """One process, the leader of a process group of its own."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, text: str) -> None:
        """Return once its log says *text*; `DemoError` if it ends first or takes too long."""
        wait_until(lambda: text in self.log.read_text() or self.popen.poll() is not None, START_TIMEOUT)
        if text not in self.log.read_text():
            raise DemoError(f"{self.name} did not start; its log ends with:\n{self.tail()}")

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        if self.popen.stdin is not None:
            self.popen.stdin.write(f"{line}\n".encode())
            self.popen.stdin.close()

    def signal(self, number: signal.Signals, *, group: bool) -> None:
        """Send a signal to it, or to it and all its children; nothing happens if there is nobody left."""
        with suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
            (os.killpg if group else os.kill)(self.popen.pid, number)

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class Processes:
    """All processes of one night; the end of the block ends every one of them."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = {**os.environ, **_python_environment(), "TMPDIR": str(directory), **environment}
        self._started: list[Started] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(polite=error[0] is None)

    def start(self, name: str, arguments: Sequence[str]) -> Started:
        """Run ``python <arguments>`` in a process group of its own, so that Ctrl-C reaches only the demo."""
        log = self._directory / f"{name}.log"
        with log.open("ab") as output, uninterrupted():
            popen = subprocess.Popen(
                [sys.executable, *arguments],
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._started.append(Started(name, popen, log))
        return self._started[-1]

    def stop(self, *, polite: bool = True) -> None:
        """End all: asked first where *polite*, and then, whatever happens, their whole groups by force."""
        try:
            if polite:
                self._ask_to_stop()
        finally:
            for started in self._started:
                started.signal(signal.SIGKILL, group=True)
            for started in self._started:
                started.popen.wait()
            self._started.clear()

    def _ask_to_stop(self) -> None:
        for started in self._started:
            started.signal(signal.SIGCONT, group=True)
            started.signal(signal.SIGTERM, group=False)
        wait_until(lambda: all(started.popen.poll() is not None for started in self._started), STOP_TIMEOUT)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Look again and again until *condition* holds, for at most *timeout* seconds; whether it does."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


def is_stopped(pid: int) -> bool:
    """Whether the process stands still (SIGSTOP has reached it); False for one that is gone."""
    status = Path(f"/proc/{pid}/stat")
    try:
        known = Path("/proc/self/stat").exists()
        state = status.read_text().rpartition(")")[2] if known else _state_from_ps(pid)
    except OSError:
        return False
    return state.strip().startswith(("T", "t"))


def _state_from_ps(pid: int) -> str:
    """Ask ps, where there is no /proc (macOS)."""
    command = ["/bin/ps", "-o", "state=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _python_environment() -> dict[str, str]:
    """What every child needs: the example importable from anywhere, output at once, fork allowed on macOS."""
    root = str(Path(example_app.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
