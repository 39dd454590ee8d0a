"""
The moment by which each wait on a connection is over.

redis-py gives each single wait its time: a fresh connection has one for TCP, for TLS, for each step of
the handshake and for each piece of a reply, so a slow or dripping server could take any number of
them. Here they share what is left of the call.
"""

from __future__ import annotations

import math
import time
from typing import Any


class Deadline:
    """When a call must be over (`at`, by the monotonic clock); no wait of it is longer than *longest* seconds."""

    __slots__ = ("_longest", "at")

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self.at = math.inf

    def left(self) -> float:
        """Seconds for the next wait; `TimeoutError` where there are none."""
        left = min(self._longest, self.at - time.monotonic())
        if left <= 0:
            raise TimeoutError("all the time for this call is used up")
        return left


class PunctualSocket:
    """*socket*, whose waits end by *deadline*, however many bytes the other side lets drip."""

    __slots__ = ("_deadline", "_socket")

    def __init__(self, socket: Any, deadline: Deadline) -> None:
        self._socket = socket
        self._deadline = deadline

    def recv(self, *args: Any) -> Any:
        """As of a socket; within what is left."""
        self._socket.settimeout(self._deadline.left())
        return self._socket.recv(*args)

    def recv_into(self, *args: Any) -> Any:
        """As of a socket; within what is left."""
        self._socket.settimeout(self._deadline.left())
        return self._socket.recv_into(*args)

    def sendall(self, data: Any) -> None:
        """As of a socket; within what is left."""
        self._socket.settimeout(self._deadline.left())
        self._socket.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class Punctual:
    """
    Mixed into a connection class of redis-py: it connects, and waits, by a `Deadline`.

    *used*: it has given an answer before, so it may have been forgotten by the other side or by a firewall.
    """

    deadline = Deadline(math.inf)
    used = False

    @property
    def socket_timeout(self) -> float:
        """What redis-py takes for the time of each wait."""
        return self.deadline.left()

    @socket_timeout.setter
    def socket_timeout(self, value: float) -> None:
        """Redis-py's constructor sets it, in some versions."""

    socket_connect_timeout = socket_timeout

    def _connect(self) -> PunctualSocket:
        return PunctualSocket(super()._connect(), self.deadline)  # type: ignore[misc]
