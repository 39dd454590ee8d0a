"""A Celery worker in a process group of its own, with a log that a failing test shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from bench.waiting import wait_until

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0


class Worker:
    """`python -m celery worker` with a pool; *env* is added to ours."""

    def __init__(
        self,
        name: str,
        log: Path,
        *,
        app: str = "bench.app",
        pool: str = "prefork",
        concurrency: int = 2,
        events: bool = True,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.pool = pool
        self.log_path = log
        # Eventlet and gevent patch the process early only when -P stands on the command line.
        self._command = [
            *(sys.executable, "-m", "celery", "-A", app, "worker", "-P", pool, "-c", str(concurrency)),
            *("-n", f"{name}@bench", "-l", "INFO", "--without-gossip", "--without-mingle"),
            *(["-E"] if events else []),
            *options,
        ]
        path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._env = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "C_FORCE_ROOT": "1",
            **(env or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._printed_before = 0

    @property
    def pid(self) -> int:
        """The main process."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the main process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the main process ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """Everything that was printed so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def child_pids(self) -> list[int]:
        """The pool processes (prefork), oldest first."""
        children = [child for child in psutil.Process(self.pid).children() if child.is_running()]
        return [child.pid for child in sorted(children, key=lambda child: child.create_time())]

    def launch(self) -> Worker:
        """Start the process without waiting for it."""
        self._printed_before = len(self.log)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.log_path.parent,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def await_ready(self, timeout: float = START_TIMEOUT) -> Worker:
        """Return when the worker says that it is ready; fails the test when it ends first."""
        wait_until(
            lambda: " ready." in self.log[self._printed_before :] or not self.alive,
            timeout=timeout,
            what=f"{self.name} ready",
        )
        assert self.alive, f"worker {self.name} ended with {self.exit_code}:\n{self.tail()}"
        return self

    def start(self) -> Worker:
        """Start and wait until it is ready."""
        return self.launch().await_ready()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the main process; a SIGKILL takes the pool children with it."""
        children = self.child_pids() if number == signal.SIGKILL else []
        self._running().send_signal(number)
        if number == signal.SIGKILL:
            self._running().wait(STOP_TIMEOUT)
            # Linux does it by itself (PR_SET_PDEATHSIG); elsewhere the orphans would go on.
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def await_exit(self, timeout: float = STOP_TIMEOUT) -> int:
        """The exit code, once it has ended."""
        wait_until(lambda: not self.alive, timeout=timeout, what=f"{self.name} to end")
        return self._running().returncode

    def stop(self, grace: float = STOP_TIMEOUT) -> None:
        """End it politely, after *grace* seconds hard, with everything it has started."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
        # The group is ours alone (start_new_session), so nobody else's process can be hit.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def tail(self, lines: int = 40) -> str:
        """The end of the log."""
        return "\n".join(self.log.splitlines()[-lines:])

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"worker {self.name} was not started"
        return self._process
